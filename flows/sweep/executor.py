"""Run the points of a sweep: one after another in this process, or several at once as flow runs on a pool or
as tasks of a job array (flows/sweep/job_array.py).

The sweeper passes three functions. `ask` returns the next point, or None if there is none now; `tell`
receives a point's ending; `look` receives the metric's values during training and returns False to stop it.
"""

import shlex
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.sweep_ledger import DONE, FAILED, PRUNED, STOPPED, Ledger, PointEntry
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep.pruning import CurveWatch, CurveWatchThread, Look

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State  # late: 1.5 s


RESTARTS = 3
POLL_S = 1.0
AWAY_S = 600.0


@dataclass(frozen=True)
class Ending:
    """How a point ended: done, failed, stopped (by the user) or pruned."""

    state: str
    error: str = ""


Ask = Callable[[], SweepPoint | None]
Tell = Callable[[SweepPoint, Ending], None]
RunHere = Callable[[SweepPoint, str, threading.Event], RunOutcome]


@dataclass
class Executor:
    """Settings of a sweep's run, and the loop that runs points in this process. `look` receives the values of
    `metric`; `code` is the frozen code's digest, '' = the present code; `run_here` runs a point in this
    process and returns its RunOutcome.
    """

    ledger: Ledger
    say: Callable[[str], None]
    run_here: RunHere
    metric: str = ""
    width: int = 1
    code: str = ""

    def drive(self, ask: Ask, tell: Tell, look: Look | None) -> None:
        """Run all points of `ask` in this process, one after another. Raises StoppedError if the user stops
        it.
        """
        while (point := ask()) is not None:
            self.one_here(point, tell, look)

    def one_here(self, point: SweepPoint, tell: Tell, look: Look | None) -> None:
        """Run the point in this process. Raises StoppedError when the user stops it."""
        stop = threading.Event()
        looking = CurveWatch(point, self.metric, look or (lambda *_: True))
        try:
            with CurveWatchThread(looking, stop):
                outcome = self.run_here(point, self.ledger.id, stop)
        except AtelierError as error:
            tell(point, Ending(FAILED, str(error)))
            return
        if outcome.failure is None:
            looking.go_on()
            tell(point, Ending(DONE))
        elif outcome.is_stopped and looking.is_hopeless:
            tell(point, Ending(PRUNED))
        elif outcome.is_stopped:
            tell(point, Ending(STOPPED))
            raise StoppedError("stopped; the same command continues")
        else:
            tell(point, Ending(FAILED, f"{outcome.failed}: {outcome.failure}".removeprefix(": ")))


@dataclass
class Running:
    """A point that runs outside this process."""

    point: SweepPoint
    entry: PointEntry
    looking: CurveWatch
    attempts: int = 1
    is_cancelled: bool = False
    silent_since: dict[str, float] = field(default_factory=dict)


class RemoteExecutor(ABC):
    """Runs points outside this process. They survive it; the same command, run again, adopts them."""

    def __init__(self, executor: Executor, ask: Ask, tell: Tell, look: Look | None) -> None:
        self.executor, self.ask, self.tell = executor, ask, tell
        self.look = look or (lambda *_: True)
        self.running: list[Running] = []

    @abstractmethod
    def submit(self, new: list[Running]) -> None:
        """Start these points, or adopt the runs that an earlier call started for them."""

    @abstractmethod
    def cancel(self, one: Running) -> None:
        """Stop the point at a checkpoint."""

    @abstractmethod
    def watch(self) -> None:
        """Poll `running`: pass the endings of finished points to `tell` and remove them."""

    def run(self) -> None:
        """Run all points of `ask`. Raises StoppedError when the user stops it."""
        try:
            while self._start() or self.running:
                self._watch()
        except (KeyboardInterrupt, StoppedError):
            self.executor.say("stopping: running tasks write a checkpoint")
            for one in self.running:
                self.cancel(one)
            while self.running:
                self._watch()
            raise StoppedError("stopped; the same command continues") from None

    def _start(self) -> bool:
        """Start points until `width` of them run. Returns whether any was started."""
        new: list[Running] = []
        while len(self.running) + len(new) < self.executor.width and (point := self.ask()) is not None:
            looking = CurveWatch(point, self.executor.metric, self.look)
            new.append(Running(point, self.executor.ledger.entry(point.number), looking))
        self.running += new
        if new:
            self.submit(new)
        return bool(new)

    def _watch(self) -> None:
        time.sleep(POLL_S)
        for one in self.running:
            if not one.looking.go_on():
                self.cancel(one)
        self.watch()


class PoolExecutor(RemoteExecutor):
    """Runs points as flow runs of a Prefect server."""

    def submit(self, new: list[Running]) -> None:
        for one in new:
            self._submit(one, adopt=True)

    def _submit(self, one: Running, *, adopt: bool) -> None:
        from atelier.infra.stack import prefect_api  # late: Prefect, 1.5 s
        from atelier.infra.stack.deployments import DEPLOYMENT  # as above

        entry = one.entry = self.executor.ledger.entry(one.point.number)
        if adopt and entry.runs:
            run = prefect_api.read_run(entry.runs[-1])
            if run is not None and run.state is not None and not run.state.is_final():
                self.executor.say(f"#{entry.number}: continues as {prefect_api.page(entry.runs[-1])}")
                return
        sweep = f"{self.executor.ledger.id}/{entry.number}"
        run_id = patiently(
            lambda: prefect_api.submit(
                f"{one.point.frozen.flow}/{DEPLOYMENT}",
                {"overrides": list(one.point.words), "code": self.executor.code, "sweep": sweep},
                key=f"{sweep}-{len(entry.runs)}",
                tags=(f"sweep:{self.executor.ledger.id}",),
            )
        )
        entry.runs.append(run_id)
        self.executor.ledger.write(entry)
        self.executor.say(f"#{entry.number}: {shlex.join(one.point.words)}   {prefect_api.page(run_id)}")

    def cancel(self, one: Running) -> None:
        from atelier.infra.stack import prefect_api  # as above

        if not one.is_cancelled:
            one.is_cancelled = True
            prefect_api.cancel(one.entry.runs[-1], "its sweep was stopped")

    def watch(self) -> None:
        from atelier.flows.deployments.cancellation import end_of  # as above
        from atelier.infra.stack import prefect_api  # as above

        for one in list(self.running):
            run = prefect_api.read_run(one.entry.runs[-1])
            state = end_of(run, one.silent_since) if run is not None else None
            if state is None:
                continue
            if state.is_crashed() and one.attempts <= RESTARTS and not one.is_cancelled:
                one.attempts += 1
                self.executor.say(f"#{one.entry.number}: its run crashed ({state.message}); restarting it")
                self._submit(one, adopt=False)
                continue
            self.running.remove(one)
            self.tell(one.point, _ending(one, state))


def patiently(submit: Callable[[], str]) -> str:
    """Call `submit` until the Prefect server is available, for at most AWAY_S seconds. Raises ConfigError
    after that.
    """
    deadline = time.monotonic() + AWAY_S
    while True:
        try:
            return submit()
        except ConfigError as error:
            if error.place != "PREFECT_API_URL" or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def _ending(one: Running, state: "State") -> Ending:
    if state.is_completed():
        return Ending(DONE)
    if one.looking.is_hopeless:
        return Ending(PRUNED)
    if state.is_cancelled() or state.type.value == "CANCELLING":
        return Ending(STOPPED)
    return Ending(FAILED, state.message or str(state.name))
