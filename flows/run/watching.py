"""Examine the checkpoints of trainings as they are written: a run of the flow `watch` for those that are new,
and one over all of them at the end, for the curve. What was examined before, by whichever watcher, is only
told.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.exam import KIND
from atelier.engine.config.message import Message
from atelier.engine.config.record import Record
from atelier.flows.run.compose import compose
from atelier.flows.run.execute import reuse_all, run_flow
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.watched import Watched, is_going
from atelier.infra.dag import Node, Product
from atelier.infra.run.context import Listener
from atelier.infra.store.checkpoints import checkpoint_word, is_there, last_steps, steps_there
from atelier.infra.store.store import SHORT, Store
from atelier.infra.store.trajectory import checkpoint_damage

LOOK_S = 2.0  # between two looks for new checkpoints
MOST_AT_ONCE = 8  # checkpoints of one run
TASK = "examine_checkpoint"


@dataclass(frozen=True, order=True)
class Place:
    """A checkpoint of a training."""

    step: int
    trajectory: str


@dataclass(frozen=True)
class Told:
    """What became of a checkpoint: its exams; or it was removed before, or while, it was read (gone); or the
    damage of one of its files.
    """

    name: str
    place: Place
    exams: Sequence[Record] = ()
    damage: str = ""

    @property
    def state(self) -> str:
        return "examined" if self.exams else "damaged" if self.damage else "gone"


@dataclass
class Known:
    """What a watcher knows of one training."""

    one: Watched
    seen: dict[int, str] = field(default_factory=dict)  # step -> trajectory
    examined: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)  # gone or damaged


def due(steps: Iterable[int], examined: Collection[int], every: int, *, is_over: bool = False) -> list[int]:
    """Every n-th of these steps, counted from the last one that was examined; after the end also the last."""
    found, since = [], 0
    ordered = sorted({*steps, *examined})
    for step in ordered:
        since += 1
        is_last = is_over and step == ordered[-1]
        if step in examined:
            since = 0
        elif since >= every or is_last:
            found.append(step)
            since = 0
    return found


class Watcher:
    """Examines checkpoints of some trainings. `words`: of the flow's configuration; `tell` is called once for
    each checkpoint, from several threads.
    """

    def __init__(
        self,
        store: Store,
        trainings: Sequence[Watched],
        evals: Sequence[str],
        words: Sequence[str],
        *,
        every: int,
        command: str,
        tell: Callable[[Told], None],
        listener: Listener,
    ) -> None:
        self.store, self.command, self.every = store, command, every
        self.progress = [Known(one) for one in trainings]
        self._evals, self._words = list(evals), list(words)
        self._tell, self._listener = tell, listener
        self._asked: dict[str, dict[str, Product]] = {}  # by trajectory, by set: an exam's product
        self._mutex = threading.Lock()

    def watch(self, *, once: bool) -> None:
        """Examine until all trainings have ended; `once`: those that are there now. Raises AtelierError for
        what would fail at every checkpoint.
        """
        while True:
            is_over = once or not any(is_going(self.store, each.one) for each in self.progress)
            batch = self._new(is_over=is_over and not once)
            if batch:
                self._examine(batch[:MOST_AT_ONCE])
            elif is_over:
                return
            else:
                time.sleep(LOOK_S)

    def report(self) -> RunOutcome | None:
        """Run the flow over all examined checkpoints, which writes the report, and what a tracker lacks; None
        for less than two.
        """
        every = [Place(step, fp) for each in self.progress for step, fp in sorted(each.examined.items())]
        if len(every) < 2:
            return None
        plan = self._plan(every)
        if self._frozen.tracker.kind == "none" and all(row["state"] == "reuse" for row in plan.rows):
            return reuse_all(self._frozen, plan, self.store, self.command)
        return self._run(plan, lambda node, message: None)

    def _new(self, *, is_over: bool) -> list[tuple[Known, Place]]:
        """Checkpoints to examine now, the oldest first. Those that are no longer there are told."""
        found: list[tuple[Known, Place]] = []
        for each in self.progress:
            there = steps_there(self.store, each.one.trajectories)
            for trajectory, last in last_steps(self.store, each.one.trajectories).items():
                if trajectory not in self._asked:
                    self._look_up(each, trajectory, last)
            each.seen |= there
            known = set(each.seen) - each.left
            for step in due(known, each.examined, self.every, is_over=is_over):
                place = Place(step, each.seen[step])
                if step in there:
                    found.append((each, place))
                else:
                    self._leave(each, place)
        return found

    def _look_up(self, each: Known, trajectory: str, last: float) -> None:
        """Learn what is asked of a trajectory's checkpoints, and tell earlier exams of these questions."""
        node = _exam_nodes(self._plan([Place(0, trajectory)]))[0]
        asked = {product.parents["set"]: product for product in node.products.values()}
        self._asked[trajectory] = asked
        earlier: dict[int, list[Record]] = {}
        for record in self.store.records(KIND):
            like = asked.get(record.parents.get("set", ""))
            step = record.identity.get("step")
            is_mine = (
                record.parents.get("trajectory") == trajectory and isinstance(step, int) and step <= last
            )
            if is_mine and like is not None and _settings(like.identity) == _settings(record.identity):
                earlier.setdefault(int(str(step)), []).append(record)
        for step, records in sorted(earlier.items()):
            if len(records) == len(asked):
                each.examined[step] = trajectory
                self._tell(Told(each.one.name, Place(step, trajectory), records))

    def _examine(self, batch: Sequence[tuple[Known, Place]]) -> None:
        plan = self._plan([place for _, place in batch])
        nodes = {node.name: node for node in _exam_nodes(plan)}
        waiting = dict(zip(nodes, batch, strict=True))
        made = {name for name in nodes if self._is_made(nodes[name])}  # by another watcher

        def tell_made() -> None:
            """In the order of steps."""
            while (name := next(iter(waiting), "")) in made:
                self._done(*waiting.pop(name), nodes[name])

        def heard(name: str, message: Message) -> None:
            if message.get("state") in ("done", "reused") and name in nodes:
                with self._mutex:
                    made.add(name)
                    tell_made()
            elif name in nodes:
                self._listener(name, message)

        tell_made()
        if not waiting:
            return
        outcome = self._run(plan, heard)
        for name, (each, place) in [*waiting.items()]:
            if name in made:
                self._done(each, place, nodes[name])
            else:
                self._failed(each, place, outcome.errors.get(name) or outcome.failure)
        failed = {name for name, state in outcome.states.items() if state == "failed"} - set(nodes)
        if outcome.failure is not None and (failed or isinstance(outcome.failure, StoppedError)):
            raise outcome.failure
        sets = {fp for asked in self._asked.values() for fp in asked}
        if all(self.store.find("evaluation", fp) is not None for fp in sets):
            self._evals = sorted(sets)  # from now on these, also if a file of the questions changes

    def _is_made(self, node: Node) -> bool:
        return all(self.store.find(one.kind, one.fingerprint) is not None for one in node.products.values())

    def _done(self, each: Known, place: Place, node: Node) -> None:
        each.examined[place.step] = place.trajectory
        found = [self.store.find(one.kind, one.fingerprint) for one in node.products.values()]
        self._tell(Told(each.one.name, place, [record for record in found if record is not None]))

    def _failed(self, each: Known, place: Place, error: Exception | None) -> None:
        """Tell why a checkpoint has no exam. Raises the error unless it is the checkpoint's own."""
        if error is None or isinstance(error, StoppedError):
            raise error or AtelierError(f"step {place.step} was not examined, without a reason")
        damage = checkpoint_damage(self.store.address("trajectory", place.trajectory), place.step)
        if is_there(self.store, place.trajectory, place.step) and not damage:
            raise error
        self._leave(each, place, damage)

    def _leave(self, each: Known, place: Place, damage: str = "") -> None:
        each.left.add(place.step)
        is_gone = not is_there(self.store, place.trajectory, place.step)
        self._tell(Told(each.one.name, place, damage="" if is_gone else damage))

    def _plan(self, places: Sequence[Place]) -> Plan:
        words = [checkpoint_word(place.trajectory[:SHORT], place.step) for place in places]
        chosen = [f"checkpoints=[{','.join(words)}]", f"evals=[{','.join(self._evals)}]", *self._words]
        self._frozen = compose("watch", chosen)
        plan = make_plan(self._frozen, self.store)
        plan.check()
        return plan

    def _run(self, plan: Plan, listener: Listener) -> RunOutcome:
        return run_flow(self._frozen, plan, self.store, self.command, listener)


def _exam_nodes(plan: Plan) -> list[Node]:
    return [node for node in plan.nodes if node.task == TASK]


def _settings(identity: Mapping[str, Json]) -> dict[str, Json]:
    """The identity of an exam without the step."""
    return {key: value for key, value in identity.items() if key != "step"}
