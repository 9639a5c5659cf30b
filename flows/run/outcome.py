"""Submit the nodes of a flow to Prefect, each to the site that runs it, and start the first ones while its
server starts; the outcome of a run: the state of every node, the first failure, and where the time went.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.infra.dag import Future, Node, Reference


class PrefectScheduler:
    """A scheduler that submits every node to Prefect, with the futures of earlier nodes as inputs: the nodes
    named in `here` (None = all), and before each the same node of other sites (`there`, by site).
    """

    def __init__(
        self,
        submit: Callable[[Node, list[Future]], Future],
        here: Collection[str] | None = None,
        there: Mapping[str, list[Node]] | None = None,
    ) -> None:
        self._submit, self._here = submit, here
        self._there = [node for nodes in (there or {}).values() for node in nodes]
        self.futures: list[Future] = []
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> Future | None:
        """Returns the future of the node here, or of the last site that runs it in its place."""
        waits = list({id(r.future): r.future for r in after if r.future is not None}.values())
        found = None
        for planned in (each for each in self._there if each.given_name == node.name):
            before = dict(zip((each.name for each in self.nodes), self.futures, strict=True))
            found = self._take(planned, [before[name] for name in planned.waits])
        if self._here is None or node.name in self._here:
            found = self._take(node, waits)
        return found

    def _take(self, node: Node, waits: list[Future]) -> Future:
        future = self._submit(node, waits)
        self.futures.append(future)
        self.nodes.append(node)
        return future


class EarlyStart:
    """Starts the first nodes of a run in the order of the DAG, while Prefect's server starts, until `end`.
    Their Prefect tasks call `make`, which waits for them, and runs a node that was not started.
    """

    def __init__(self, nodes: Sequence[Node], make: Callable[[Node], dict[str, str]], most: int) -> None:
        """`most`: nodes at once."""
        self._nodes, self._make, self._most = nodes, make, most
        self._started: dict[str, threading.Thread] = {}
        self._results: dict[str, dict[str, str] | BaseException] = {}
        self.is_ended = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start every node whose inputs are there, and later those that wait for it."""
        with self._lock:
            for node in self._nodes if not self.is_ended else ():
                is_ready = all(isinstance(self._results.get(name), dict) for name in node.waits)
                is_full = len(self._started) - len(self._results) >= self._most
                if is_ready and not is_full and node.name not in self._started:
                    thread = threading.Thread(target=self._run, args=(node,), name=node.name)
                    self._started[node.name] = thread
                    thread.start()

    def end(self) -> None:
        """Start no more nodes: Prefect's tasks do."""
        with self._lock:
            self.is_ended = True

    def finish(self) -> None:
        """Run all nodes to their end, without Prefect; none waits for a node that failed."""
        ended = 0
        while ended < len(self._started):
            threads = [*self._started.values()]
            for thread in threads:
                thread.join()
            ended = len(threads)
        self.end()

    @contextmanager
    def running(self, stop: threading.Event) -> Iterator[None]:
        """Begin, and wait at the end for the nodes that were started; an error sets `stop`."""
        self.begin()
        try:
            yield
        except BaseException:
            self.end()
            stop.set()
            raise
        finally:
            self.end()
            for thread in [*self._started.values()]:
                thread.join()

    def make(self, node: Node) -> dict[str, str]:
        """The result of a node that was started, when it has ended; others run now. Raises what it raised."""
        if node.name not in self._started:
            return self._make(node)
        self._started[node.name].join()
        result = self._results[node.name]
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self, node: Node) -> None:
        try:
            self._results[node.name] = self._make(node)
        except BaseException as error:
            self._results[node.name] = error
        with suppress(RuntimeError):  # the interpreter ends
            self.begin()


@dataclass
class RunOutcome:
    """How a run ended: the state of each node, the first failure, and the time spent (seconds)."""

    run_id: str
    states: dict[str, str] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    errors: dict[str, Exception] = field(default_factory=dict)
    failure: Exception | None = None
    failed: str = ""
    untracked: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # addresses of curves besides MLflow
    is_whole: bool = False  # all nodes ended in a known state, even if Prefect failed
    prefect_s: float = 0.0
    total_s: float = 0.0

    @property
    def status(self) -> str:
        """finished, stopped or failed."""
        return "finished" if self.failure is None else "stopped" if self.is_stopped else "failed"

    @property
    def is_stopped(self) -> bool:
        return isinstance(self.failure, StoppedError)

    @property
    def reused(self) -> list[str]:
        return [name for name, state in self.states.items() if state == "reused"]


def wait_for(scheduler: PrefectScheduler, outcome: RunOutcome) -> None:
    """Wait for every future, then conclude."""
    for future in scheduler.futures:
        future.wait()
    conclude(scheduler.nodes, outcome)


def conclude(nodes: Sequence[Node], outcome: RunOutcome) -> None:
    """Set the state of every node, all of which have ended. The first failure is the run's; a stop counts
    only without failures.
    """
    for node in nodes:
        outcome.states.setdefault(node.name, "skipped")
    errors = [(node.name, outcome.errors[node.name]) for node in nodes if node.name in outcome.errors]
    errors.sort(key=lambda pair: isinstance(pair[1], StoppedError))
    if errors:
        outcome.failed, outcome.failure = errors[0]
        return
    for name, state in outcome.states.items():
        if state not in ("done", "reused"):
            outcome.failed, outcome.failure = name, AtelierError(f"ended as {state}, without a reason")
            return
