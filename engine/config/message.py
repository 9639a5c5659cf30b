"""Messages of a running gang: a JSON object a line, from the standard output of ranks and supervisor to the
process that runs the task, and from there to whoever shows the run. Torch-free.

A message has some of these keys. Whoever reads one passes over the others.
"""

from collections.abc import Callable
from typing import TypedDict, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, DamageError, DataError, printable


class Message(TypedDict, total=False):
    """A message about a node, from a rank, a supervisor or the run context."""

    state: str  # of the node: running, done, reused, failed, stopped
    detail: str  # beside an end: what was made
    waiting: str  # for what
    warning: str
    log: str
    error: str  # this and the next two: the error that ended the process
    exit_code: int
    is_damage: bool
    restart: int  # number of the restart from the last checkpoint, which begins now
    pids: list[int]  # of the ranks that the supervisor with the pid `guard` has started
    guard: int
    published: str  # key of an output whose record, of this kind and fingerprint, is written now
    kind: str
    fingerprint: str
    progress: int  # of `total`, in `unit`; `rate` a second
    total: int
    unit: str
    rate: float
    loss: dict[str, float]  # by role
    resumed: int  # the step that a training goes on from; 0 = it begins
    damages: list[str]  # checkpoints that were passed over
    layout: Json  # as it was resolved
    stopped: int  # the step that a training was stopped at
    done: Json  # what was made, for people


class GangEnd(Message, total=False):
    """How a batch job's gang ended: an exit code, and the error if there was one."""

    code: int
    has_died: bool  # processes were killed from outside


class Speed(TypedDict):
    """How fast text was generated."""

    tokens: int
    tokens_per_s: float


class Continuation(TypedDict, total=False):
    """A line of a generator: a piece of a prompt's continuation, or in the end `done`, or an error. When it
    serves: the whole continuation, or an error, with the `id` of a request that has one.
    """

    id: int
    prompt: int
    text: str
    done: Speed
    error: str
    exit_code: int


class LiveState(Message, total=False):
    """Present state of a node: the newest of its messages together."""

    node: str
    began: float  # seconds since 1970


OnMessage = Callable[[Message], None]


def message_of(document: Json) -> Message | None:
    """The document as a message; None when it is no JSON object."""
    return cast(Message, document) if isinstance(document, dict) else None


def to_line(error: AtelierError) -> Message:
    """The JSON line by which a process reports the error that ended it; `from_line` is the inverse."""
    text = printable(error, 0, keep="\n")  # what a file holds may be no text that can be sent on
    return {"error": text, "exit_code": error.exit_code, "is_damage": isinstance(error, DamageError)}


def from_line(line: Message) -> AtelierError:
    kind = DataError if line.get("exit_code") == 2 else DamageError if line.get("is_damage") else AtelierError
    return kind(line.get("error", ""))
