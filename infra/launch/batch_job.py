"""Run a gang as a job of a batch system (Slurm, Kubernetes) and follow it.

The gang's orders are files in the store; on each machine infra/launch/node_agent.py runs its share of the
ranks under a supervisor. The submitting process may exit: the job continues and publishes its results, and
the same command then finds them or waits for them.
"""

import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.message import GangEnd, Message, OnMessage, from_line
from atelier.infra.code.frozen import freeze
from atelier.infra.launch.channel import Channel
from atelier.infra.launch.gang import DiedError
from atelier.infra.launch.orders import GangLetter, Orders
from atelier.infra.launch.rendezvous import share_of

LOOK_S = 2.0  # between two status queries to the batch system
POLL_S = 0.5
PATIENCE_S = 60.0  # beyond grace_s, for a gang that was asked to stop
STOPPED = 75


class PausedError(DiedError):
    """The batch system ended a gang, which saved a checkpoint, and does not restart it."""


@dataclass(frozen=True)
class JobStatus:
    """Phase of a job, and the batch system's text for it."""

    phase: Literal["waiting", "running", "over"]
    text: str
    is_cancelled: bool = False  # by a user or administrator


class Batch(Protocol):
    """Interface of a batch system."""

    def check(self, root: str) -> None:
        """Raises ConfigError with the system's message when it would refuse gangs of the store at `root`."""
        ...

    def show(self, gang: "BatchJob") -> str:
        """The job description that would be submitted, as text for an administrator."""
        ...

    def submit(self, gang: "BatchJob") -> str:
        """Submit the gang; returns the job's id. Raises ConfigError with the system's message on refusal."""
        ...

    def status(self, job: str) -> JobStatus:
        """Status of a job. Raises OSError while the system does not answer."""
        ...

    def end(self, job: str) -> None:
        """Cancel the job now."""
        ...

    def last_words(self, job: str) -> str:
        """Last output of the job's processes, for error messages."""
        ...


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """A job to submit: one process on each of `nodes` machines, `python -m <module> <words>`, which starts
    `ranks` ranks of `threads` threads; or an array of such jobs.
    """

    id: str
    name: str
    root: str
    nodes: int
    ranks: int
    threads: int
    module: str = "atelier.infra.launch.node_agent"
    more: tuple[str, ...] = ()
    elements: tuple[int, ...] = ()  # indices of a job array; () = no array
    at_once: int = 0  # array elements at once; 0 = no limit

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments of the module."""
        return self.root, self.id, *self.more


def start_gang(
    orders: Orders,
    on_message: OnMessage,
    stop: threading.Event,
    *,
    batch: Batch,
    per_node: int,
) -> None:
    """As infra.launch.gang.start_gang, on machines of `per_node` ranks each. Submits another job when one is
    ended at its time limit after making progress.
    """
    nodes = max(1, -(-orders.ranks // per_node))
    while True:
        gang = BatchJob(
            id=f"away-{secrets.token_hex(8)}",
            name=orders.name,
            root=orders.root,
            nodes=nodes,
            ranks=share_of(orders.ranks, nodes),
            threads=orders.threads,
        )
        channel = Channel(orders.root, gang.id)
        channel.put("orders", GangLetter.of(orders, nodes, freeze(orders.root)).document())
        followed = _Followed(gang, channel, batch, on_message, stop, orders.grace_s)
        try:
            followed.to_the_end()
            channel.delete()
            return
        except PausedError as error:
            if not followed.has_moved:
                raise
            on_message({"warning": f"{error}; another job continues from there"})


class _Followed:
    """Follows one job from submission to its end."""

    def __init__(
        self,
        gang: BatchJob,
        channel: Channel,
        batch: Batch,
        on_message: OnMessage,
        stop: threading.Event,
        grace_s: float,
    ) -> None:
        self.gang, self.channel, self.batch, self.on_message, self.stop = (
            gang,
            channel,
            batch,
            on_message,
            stop,
        )
        self.grace_s = grace_s
        self.problems: list[Message] = []
        self.asked_at = 0.0
        self.has_moved = False

    def to_the_end(self) -> None:
        job = self.batch.submit(self.gang)
        standing = JobStatus("waiting", "")
        looked_at, over_at = 0.0, 0.0
        try:
            while True:
                if time.monotonic() - looked_at > LOOK_S:
                    looked_at = time.monotonic()
                    standing = self._look(job, standing)
                end = self._read()
                if end is not None and end.get("code") == 0:
                    return
                if standing.phase == "over":
                    over_at = over_at or time.monotonic()
                    if end is not None or time.monotonic() - over_at > LOOK_S:
                        raise self._failure(end, standing, job)
                if self.stop.is_set():
                    self._stop(end, standing)
                time.sleep(POLL_S)
        except BaseException:
            if standing.phase != "over":
                self.batch.end(job)
            raise

    def _read(self) -> GangEnd | None:
        """Handle new messages; returns how the gang ended, if it has. An unreachable store is read again
        later.
        """
        with suppress(OSError):
            end = self.channel.end()
            for message in self.channel.receive():  # read after `end`: all messages precede it
                self._take(message)
            return end
        return None

    def _take(self, message: Message) -> None:
        self.has_moved |= "progress" in message
        if "restart" in message:
            self.problems.clear()
        if "error" in message:
            self.problems.append(message)
        self.on_message(message)

    def _look(self, job: str, before: JobStatus) -> JobStatus:
        with suppress(OSError):  # unreachable: queried again later
            now = self.batch.status(job)
            if now != before and now.phase == "waiting":
                self.on_message({"waiting": now.text})
            if now.phase == "running" and before.phase != "running":
                self.on_message({"state": "running"})
            return now
        return before

    def _stop(self, end: GangEnd | None, standing: JobStatus) -> None:
        """Request a stop, repeatedly; StoppedError when it has stopped, has not begun, or took too long."""
        self.asked_at = self.asked_at or time.monotonic()
        with suppress(OSError):
            self.channel.stop()
        if (
            end is not None
            or standing.phase == "waiting"
            or time.monotonic() - self.asked_at > self.grace_s + PATIENCE_S
        ):
            raise StoppedError("stopped")

    def _failure(self, end: GangEnd | None, standing: JobStatus, job: str) -> AtelierError:
        if self.stop.is_set():
            return StoppedError("stopped")
        if end is not None and "error" in end:
            error = from_line(end)
            return DiedError(str(error)) if end.get("has_died") else error
        if self.problems:
            return from_line(self.problems[-1])
        if standing.is_cancelled:
            return StoppedError(f"{standing.text}; it stopped at a checkpoint")
        if end is not None:
            return PausedError(f"{standing.text}; it stopped at a checkpoint")
        words = self.batch.last_words(job)
        return AtelierError("\n".join([f"{self.gang.name}: {standing.text}", *([words] if words else [])]))
