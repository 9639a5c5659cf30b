"""Messages of a running gang, one JSON object per line: from ranks and supervisor to the task's process, and
from there to progress displays. Torch-free.

A message has some of these keys. Readers ignore unknown keys.
"""

from collections.abc import Callable, Iterator
from typing import TypedDict, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, DamageError, DataError, printable


class Message(TypedDict, total=False):
    """A message about a node, from a rank, a supervisor or the run context."""

    state: str  # of the node: running, done, reused, failed, stopped
    detail: str  # for a node that ended: its results
    waiting: str  # reason of the wait
    warning: str
    log: str
    error: str  # this and the next two: the error that ended the process
    exit_code: int
    is_damage: bool
    restart: int  # number of the restart that begins now, from the last checkpoint
    pids: list[int]  # ranks started by the supervisor with pid `guard`
    guard: int
    published: str  # key of an output whose record was just written
    kind: str
    fingerprint: str
    progress: int  # out of `total`, in `unit`; `rate` per second
    total: int
    unit: str
    rate: float
    loss: dict[str, float]  # loss of each role
    resumed: int  # step from which a training resumes; 0 = start
    damages: list[str]  # damaged checkpoints that were skipped
    layout: Json  # the resolved layout
    stopped: int  # step at which a training was stopped
    done: Json  # results, for display


class GangEnd(Message, total=False):
    """The end of a batch job's gang: exit code, and the error if any."""

    code: int
    has_died: bool  # processes were killed from outside


class Speed(TypedDict):
    """Speed of text generation."""

    tokens: int
    tokens_per_s: float


class Continuation(TypedDict, total=False):
    """A line of a generator: a piece of a prompt's continuation, finally `done` or an error. When serving: a
    whole continuation or an error, with the `id` of its request.
    """

    id: int
    prompt: int
    text: str
    done: Speed
    error: str
    exit_code: int


class LiveState(Message, total=False):
    """Present state of a node, merged from its newest messages."""

    node: str
    began: float  # seconds since 1970


OnMessage = Callable[[Message], None]


def message_of(document: Json) -> Message | None:
    """The document as a message; None if it is not a JSON object."""
    return cast(Message, document) if isinstance(document, dict) else None


def to_line(error: AtelierError) -> Message:
    """The line by which a process reports the error that ended it; `from_line` is the inverse."""
    text = printable(error, 0, keep="\n")  # content of files may not be printable
    return {"error": text, "exit_code": error.exit_code, "is_damage": isinstance(error, DamageError)}


def from_line(line: Message) -> AtelierError:
    kind = DataError if line.get("exit_code") == 2 else DamageError if line.get("is_damage") else AtelierError
    return kind(line.get("error", ""))


def texts_of(message: Message) -> Iterator[tuple[str, str]]:
    """Level and text of each line about a message; none for messages that only programs read."""
    if "error" in message:
        yield from (("error", line) for line in message["error"].splitlines() if line)
    elif "warning" in message:
        yield "warning", message["warning"]
    elif "resumed" in message:
        step = message["resumed"]
        yield "info", f"continues from step {step}" if step else "begins at step 0"
        yield from (("warning", f"skipped as damaged: {damage}") for damage in message.get("damages", []))
    elif "stopped" in message:
        yield "info", f"stopped at step {message['stopped']}, with a checkpoint"
    elif text := message.get("waiting") or message.get("log"):
        yield "info", text
    elif state := message.get("state"):
        yield "info", f"{state}  {message.get('detail', '')}".rstrip()
    elif "progress" in message:
        yield "info", progress_text(message)


def progress_text(message: Message) -> str:
    """'120/400 steps, 3.2/s, 88 s left  student_a 3.123'."""
    done, total, rate = message.get("progress", 0), message.get("total", 0), message.get("rate") or 0
    pace = f", {rate:.3g}/s, {(total - done) / rate:.0f} s left" if rate else ""
    losses = message.get("loss")
    found = "  ".join(f"{k} {v:.3f}" for k, v in losses.items()) if isinstance(losses, dict) else ""
    return f"{done}/{total} {message.get('unit', '')}{pace}  {found}".rstrip()
