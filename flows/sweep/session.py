"""One call of `atelier <flow> -m ...`: the object that Hydra's sweepers call, and its results."""

import importlib
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, JobStatus

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.direction import DIRECTIONS, EVAL_LOSS, is_held_out_loss, required, sign_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.role import Role
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.draw import collect_nodes
from atelier.flows.run.pools import check_launcher, check_nodes_here, gangs_at_once, site_of
from atelier.flows.run.sweep_ledger import DONE, FAILED, OPEN, STOPPED, Ledger, PointEntry
from atelier.flows.run.sweep_point import (
    SweepPoint,
    companions_of,
    composed,
    point_fingerprint,
    with_companions,
    words_of,
)
from atelier.flows.sweep.executor import Ask, Ending, Executor, PoolExecutor, RunHere, Tell
from atelier.flows.sweep.pruning import Look
from atelier.infra.dag import Node
from atelier.infra.launch.slurm import SlurmBatch
from atelier.infra.report.held_out import WAY_OUT, differing, held_out_of
from atelier.infra.stack.stack import join_stack
from atelier.infra.store.run_manifest import measured
from atelier.infra.store.store import Store

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from optuna.trial import FrozenTrial


FACTS = ("params", "tokens", "step", "started_at")
ARRAY = "slurm"  # the launcher that runs points in a job array
MADE = ("key", "name", "model", "kind", "fingerprint")  # keys of a manifest's row
POOL_WHEN_BLANK = {"prefect": "pool=local", "slurm": "pool=slurm"}


def direction_of(metric: str, given: str) -> str:
    """The given direction, else the metric's declared one ('' = the held-out loss). Raises ConfigError for
    another word, and if none is given or declared.
    """
    place = "hydra.sweeper.direction"
    if given and given not in DIRECTIONS:
        raise ConfigError(place, f"is {given!r}", f"give one of {', '.join(DIRECTIONS)}")
    return given or required(
        metric or EVAL_LOSS, "hydra.sweeper.metric", f"give {place}=maximize or minimize"
    )


def listed(value: Json) -> list[str]:
    """A setting that may be one word or a list of them."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [str(one) for one in value]
    return [str(value)]


@dataclass
class Session:
    """A running sweep: the task function of Hydra's multirun."""

    flow: str
    keys: tuple[str, ...]
    store: Store
    ledger: Ledger
    command: str
    run_here: RunHere
    say: Callable[[str], None] = print
    launcher: str = ""  # Hydra's launcher, if given
    is_dry: bool = False
    metric: str = ""
    direction: str = "minimize"
    points: dict[int, SweepPoint] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # lines below the report's table
    _sets: dict[tuple[int, str], str | None] = field(default_factory=dict)

    def __call__(self, config: "DictConfig") -> float | None:
        """Run a job of a foreign launcher in this process. Returns the point's value."""
        from hydra.core.hydra_config import HydraConfig

        [point] = self.enter([list(HydraConfig.get().overrides.task)])
        outcome = self.run_here(point, self.ledger.id, threading.Event())
        if outcome.failure is None:
            self.tell(point, Ending(DONE))
        else:
            self.tell(point, Ending(STOPPED if outcome.is_stopped else FAILED, str(outcome.failure)))
        return self.value(point)

    def compare(self, metric: str, direction: str) -> None:
        """Set the metric that compares points; direction '' = the metric's declared one. Raises ConfigError
        for an unknown direction, and if none is given or declared.
        """
        self.metric, self.direction = metric, direction_of(metric, direction)

    def launch(self, jobs: Sequence[Sequence[str]], width: int) -> list[JobReturn]:
        """Run the unfinished points of all jobs; called by Hydra's sweepers."""
        points = self.enter(jobs)
        queue = deque(self.left(points))
        if not self.is_dry:
            self.drive(lambda: queue.popleft() if queue else None, self.tell, None, width, len(queue))
        return [
            JobReturn(overrides=list(job), status=JobStatus.COMPLETED, _return_value=self.value(point))
            for job, point in zip(jobs, points, strict=True)
        ]

    def choose(
        self, kind: str, words: list[Override], settings: JsonObject, width: int
    ) -> "Sequence[FrozenTrial] | Sequence[float | None]":
        """Run a sweep with points chosen by `atelier.flows.sweep.<kind>`. Returns best trials, or values."""
        self.compare(*(listed(settings[name])[0] for name in ("metric", "direction")))
        return importlib.import_module(f"atelier.flows.sweep.{kind}").sweep(self, words, settings, width)

    # points

    def enter(self, jobs: Sequence[Sequence[str]]) -> list[SweepPoint]:
        """Enter the points of these jobs into the ledger, after validating all of them."""
        wanted = [words_of(job) for job in jobs]
        frozen = composed(self.flow, wanted)
        blank = POOL_WHEN_BLANK.get(self.launcher, "")
        has_pool = any(word.startswith("pool=") for words in wanted for word in words)
        if (
            blank
            and not any(one.pool.is_served for one in frozen)
            and not (self.launcher == ARRAY and has_pool)
        ):
            wanted = [(*words, blank) for words in wanted]
            frozen = composed(self.flow, wanted)
        if self.launcher == ARRAY:
            from atelier.flows.sweep.job_array import check_fits  # late: only for batch systems

            for one in frozen:
                check_fits(one, self.store)
        every = [collect_nodes(one, self.store) for one in frozen]
        self._check_metric([node for nodes in every for node in nodes])
        found = []
        for words, one, nodes in zip(wanted, frozen, every, strict=True):
            entry = self.ledger.enter(point_fingerprint(nodes), words)
            point = SweepPoint(entry.number, words, one, nodes, self.store)
            self.points[entry.number] = point
            found.append(point)
        return found

    def _check_metric(self, nodes: Sequence[Node]) -> None:
        """Raises ConfigError if no point makes the metric's model."""
        name = self.metric.rpartition(".")[0]
        products = [(node, key, product) for node in nodes for key, product in node.products.items()]
        if not name or not products:
            return
        known = {word for node, key, made in products for word in (key, made.name, made.kind, node.name)}
        models = sorted({made.name for _, _, made in products if made.kind == "model"})
        if name not in known and not name.startswith(tuple(f"{node.name}." for node in nodes)):
            there = ", ".join(models) or "no model"
            raise ConfigError("hydra.sweeper.metric", f"no {name} in this sweep", f"there is {there}")

    def left(self, points: Sequence[SweepPoint]) -> list[SweepPoint]:
        """The unfinished points, each once, with the companion students that train with them."""
        left: dict[int, SweepPoint] = {}
        for point in points:
            if point.is_finished():
                self._note_finished(point)
            else:
                left[point.number] = point
        others = [point.frozen for point in left.values()]
        return [self._ready(point, others) for point in left.values()]

    def _ready(self, point: SweepPoint, others: list[RunConfig]) -> SweepPoint:
        companions: dict[str, Role] = companions_of(point.frozen, others)
        entry = self.ledger.entry(point.number)
        entry.state, entry.error, entry.words = OPEN, "", list(point.words)
        entry.companions = {name: role.model_dump(mode="json") for name, role in companions.items()}
        self.ledger.write(entry)
        return replace(point, frozen=with_companions(point.frozen, companions))

    def _note_finished(self, point: SweepPoint) -> None:
        entry = self.ledger.entry(point.number)
        if entry.state != DONE:
            entry.state, entry.ended = DONE, time.time()
            self._describe(entry, point)
            self.ledger.write(entry)
        if not self.is_dry:
            self.say(f"= #{point.number} {shlex.join(point.words)}   finished before")

    def value(self, point: SweepPoint) -> float | None:
        return point.value(self.metric_of(point))

    def _describe(self, entry: PointEntry, point: SweepPoint) -> None:
        """Write the point's artifacts and the compared model's facts to the entry."""
        entry.metric, entry.value = self.metric_of(point), self.value(point)
        entry.direction = self.direction
        entry.made = [row.model_dump(include={*MADE}) for row in point.rows]
        found = {word: point.value(f"{self.model_of(point)}.{word}".lstrip(".")) for word in FACTS}
        entry.facts = {word: value for word, value in found.items() if value is not None}

    def metric_of(self, point: SweepPoint) -> str:
        """The given metric, else the held-out loss of the varied model."""
        return self.metric or f"{self.model_of(point)}.{EVAL_LOSS}".lstrip(".")

    def model_of(self, point: SweepPoint) -> str:
        """The role named by the metric or the swept keys; else the last one trained."""
        if "." in self.metric:
            return self.metric.rpartition(".")[0]
        trained = [role for node in point.nodes if node.task == "train" for role in node.products]
        named = [key.split(".")[1] for key in self.keys if key.startswith("roles.")]
        of_flow = [role for role in point.frozen.roles if role in trained]
        return next((role for role in named if role in trained), (of_flow or trained or [""])[-1])

    # running

    def drive(self, ask: Ask, tell: Tell, look: Look | None, width: int, most: int = 0) -> None:
        """Run all points of `ask`: in this process, on the configuration's pool or in job arrays, `width` at
        once, 0 = no limit. `most`: upper bound of their number, 0 = unknown.
        """
        first = ask()
        if first is None:
            return
        first.frozen.check_runs()
        given = deque([first])
        pool = first.frozen.pool
        if not pool.is_served:
            check_nodes_here(first.nodes, first.frozen.pool_of, self.store)

        def give() -> SweepPoint | None:
            return given.popleft() if given else ask()

        executor = Executor(self.ledger, self.say, self.run_here, metric=self.metric_of(first))
        if self.launcher == ARRAY:
            from atelier.flows.sweep.job_array import ArrayExecutor  # late: only for batch systems

            check_launcher(pool, self.store.root)
            executor.width = most or width or gangs_at_once(pool)
            batch = SlurmBatch(site_of(pool).slurm, gpus=not pool.is_cpu)
            ArrayExecutor(executor, give, tell, look, batch, width if most else 0).run()
        elif pool.is_served:
            join_stack(self.store.root)
            from atelier.flows.deployments.submit import ready  # late: Prefect, 1.5 s

            executor.code = ready(first.frozen, self.store)
            executor.width = width or gangs_at_once(pool)
            PoolExecutor(executor, give, tell, look).run()
        else:
            executor.drive(give, tell, look)

    def tell(self, point: SweepPoint, ending: Ending) -> None:
        """Write a point's ending to the ledger, and print it."""
        entry = self.ledger.entry(point.number)
        entry.state, entry.error, entry.ended = ending.state, ending.error, time.time()
        self._describe(entry, point)
        self.ledger.write(entry)
        value = "" if entry.value is None else f"   {self.metric_of(point)} {entry.value:.4f}"
        mark = {DONE: "+", FAILED: "x"}.get(ending.state, "-")
        error = f"   {ending.error}" if ending.error else ""
        self.say(f"{mark} #{entry.number} {shlex.join(point.words)}   {ending.state}{value}{error}")

    # results

    def revalue(self) -> None:
        """Give the points of earlier calls, which may have used another metric, this call's value and
        direction.
        """
        for entry in self.ledger.entries():
            metric = self._metric_now(entry)
            if entry.state != DONE or (entry.metric, entry.direction) == (metric, self.direction):
                continue
            there = measured(self.store, entry.rows, metric)
            entry.metric, entry.direction = metric, self.direction
            entry.value = there[0] if there is not None else None
            self.ledger.write(entry)

    def _metric_now(self, entry: PointEntry) -> str:
        """The metric by which this call compares a point, also one of an earlier call."""
        if self.metric or is_held_out_loss(entry.metric) or not self.points:
            return self.metric or entry.metric
        return self.metric_of(self.points.get(entry.number) or next(iter(self.points.values())))

    def unranked(self) -> str:
        """Why the finished points cannot be ranked, with a way out; '' if they can."""
        valued, done = self._valued(), [one for one in self.ledger.entries() if one.state == DONE]
        if done and not valued:
            return f"no point has a {done[0].metric}; give another hydra.sweeper.metric"
        problem = differing((f"#{one.number}", self.set_of(one, one.metric)) for one in valued)
        return f"{problem}; {WAY_OUT}" if problem else ""

    def set_of(self, entry: PointEntry, metric: str) -> str | None:
        """The held-out set of a finished point's metric, or None."""
        key = entry.number, metric
        if key not in self._sets:
            there = measured(self.store, entry.rows, metric)
            if there is None:
                return None
            self._sets[key] = held_out_of(there[1], metric)
        return self._sets[key]

    def _valued(self) -> list[PointEntry]:
        return [e for e in self.ledger.entries() if e.state == DONE and e.value is not None]

    def best(self) -> PointEntry | None:
        """The finished point with the best value; None if the values cannot be ranked."""
        done = [] if self.unranked() else self._valued()
        sign = sign_of(self.direction)
        return min(done, key=lambda entry: sign * (entry.value or 0.0), default=None)
