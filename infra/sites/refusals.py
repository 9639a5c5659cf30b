"""What agents do not take of each other's messages, as lines for whoever runs the agent: a refusal for good
is said at once, one that may end by itself when it has lasted. And what is wrong with one thing holds up no
other.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc

from atelier.engine.config.error import AtelierError, DamageError
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.transfer import EARLY, NEVER, NOT_NEXT, NOT_TRAINED, OVER, CallError, code_of, reason

OF_ONE = (*NEVER, *EARLY, grpc.StatusCode.UNKNOWN)  # a peer that answers, to what is asked
MOST_REMEMBERED = 100_000  # of what is not done again
MOST_EARLY = 10_000  # trainings and notes, of all peers, that are not taken yet
MOST_LINES = 300  # of a peer, until they are said
MOST_LATER_S = 600.0  # between two tries of the same
LASTS_S = 30.0  # from then on a refusal that may end by itself is said
DIFFERS = "; one that trains it has other settings, data or tokenizer: compare both configurations"


Key = TypeVar("Key")


class CompletedKeys(Generic[Key]):
    """What is settled with a peer, and not done again: the last `most` of it."""

    def __init__(self, most: int = 0) -> None:
        self._known: dict[Key, None] = {}
        self._most = most or MOST_REMEMBERED
        self._lock = threading.Lock()

    def __contains__(self, what: object) -> bool:
        return what in self._known

    def add(self, what: Key) -> None:
        with self._lock:
            self._known[what] = None
            if len(self._known) > self._most:
                del self._known[next(iter(self._known))]


class RetrySchedule(Generic[Key]):
    """What is tried again with a peer after some seconds; what comes damaged each time after twice as many as
    before, at most `MOST_LATER_S`. The last `MOST_REMEMBERED` of it.
    """

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, float]] = {}  # when, and the seconds until then
        self._lock = threading.Lock()

    def is_due(self, what: Key) -> bool:
        return time.monotonic() >= self._known.get(what, (0.0, 0.0))[0]

    def has_failed(self, what: Key) -> bool:
        """Whether it had to wait, since it succeeded last."""
        return what in self._known

    def failed(self, what: Key, first: float, *, is_damaged: bool) -> None:
        with self._lock:
            _, waited = self._known.pop(what, (0.0, 0.0))
            seconds = min(max(first, 2 * waited), MOST_LATER_S) if is_damaged else first
            self._known[what] = (time.monotonic() + seconds, seconds)
            if len(self._known) > MOST_REMEMBERED:
                del self._known[next(iter(self._known))]

    def succeeded(self, what: Key) -> None:
        with self._lock:
            self._known.pop(what, None)


def is_of_one(error: Exception) -> bool:
    """Whether an error is of what was carried alone: else the peer does not answer at all."""
    return not isinstance(error, grpc.RpcError) or code_of(error) in OF_ONE


def refused_with(error: NotTaken) -> grpc.StatusCode:
    """The code by which a peer learns that this site does not take something."""
    if error.lacks:
        return NOT_TRAINED if error.lacks == "training" else NOT_NEXT
    codes = {"early": grpc.StatusCode.ABORTED, "over": OVER, "never": grpc.StatusCode.FAILED_PRECONDITION}
    return codes[error.when]


def is_damage_here(error: AtelierError, peer: str) -> bool:
    """Whether an error is of this site's own files, not of what `peer` sends."""
    return isinstance(error, DamageError) and error.place != peer


def refusal(error: AtelierError, peer: str, audit: Audit) -> CallError:
    """How a call ends with an error; what will never be taken is in the audit log, and so is what is damaged
    here, of which the peer learns that it may ask again.
    """
    if is_damage_here(error, peer):  # no fault of the request
        audit.complain(str(error))
        text = "something is damaged here; this site's agent says what"
        return CallError(grpc.StatusCode.ABORTED, text)
    if not isinstance(error, NotTaken) or error.when == "never":
        audit.add("refused", who=peer, why=str(error))
    if isinstance(error, NotTaken):
        return CallError(refused_with(error), str(error))
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def ending(error: Exception, peer: str, audit: Audit) -> CallError:
    """How a call ends with an error: as `refusal`, or for a fault of this site's own, of which its log alone
    has the text, with the word that it is one.
    """
    if isinstance(error, CallError):
        return error
    try:
        if isinstance(error, AtelierError):
            return refusal(error, peer, audit)
    except OSError as full:  # the log cannot be written
        error = full
    why = f"a call of {peer}: {type(error).__name__}: {error}"
    try:
        audit.complain(why)
    except OSError:
        audit.on_damage(why)
    return CallError(grpc.StatusCode.UNKNOWN, f"{type(error).__name__} there; that site's agent says more")


def status_of(error: Exception) -> grpc.StatusCode | None:
    """The code with which something was refused, here or by a peer."""
    if isinstance(error, NotTaken):
        return refused_with(error)
    return code_of(error) if isinstance(error, grpc.RpcError) else None


class Apart:
    """Things that are carried one by one; the first error is raised at the end."""

    def __init__(self) -> None:
        self._problems: list[Exception] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around what is done with one. Raises RpcError where the peer does not answer at all."""
        try:
            yield
        except (AtelierError, OSError, grpc.RpcError) as error:
            if not is_of_one(error):
                raise
            self._problems.append(error)

    def end(self) -> None:
        """Raises the first error of all that were done."""
        if self._problems:
            raise self._problems[0]


@dataclass
class _Early:
    """A refusal that may end by itself: who does not take what, and since when."""

    what: str
    since: float
    is_said: bool = False


class Refusals:
    """The refusals by peer, each said once for a message."""

    def __init__(self) -> None:
        self._early: dict[tuple[str, str], _Early] = {}  # by peer and training, of its next message
        self._lines: dict[str, list[str]] = {}  # not said yet
        self._lock = threading.Lock()  # around them: each peer, and its notes, have a thread

    def never(self, peer: str, what: str, why: Exception) -> None:
        """`what` is refused for good."""
        if status_of(why) != OVER:
            self._say(peer, _line(peer, what, why))

    def early(self, peer: str, training: str, what: str, why: Exception, *, is_here: bool = False) -> None:
        """`what`, the next message of a training, is refused for now; `is_here`: by this site."""
        with self._lock:
            known = self._early.get((peer, training))
            if known is None or known.what != what:
                known = self._early[peer, training] = _Early(what, time.monotonic())
            if len(self._early) > MOST_EARLY:
                del self._early[next(iter(self._early))]
        if not known.is_said and time.monotonic() - known.since >= LASTS_S:
            known.is_said = True
            self._say(peer, _line(peer, what, why, is_here=is_here))

    def settled(self, peer: str, training: str) -> None:
        """The next message of a training is refused no more."""
        with self._lock:
            known = self._early.pop((peer, training), None)
        if known is not None and known.is_said:
            self._say(peer, f"{peer}: {known.what} goes on")

    def lines(self, peer: str) -> list[str]:
        """What has to be said; it counts as said."""
        with self._lock:
            return self._lines.pop(peer, [])

    def _say(self, peer: str, line: str) -> None:
        with self._lock:
            lines = self._lines.setdefault(peer, [])
            if len(lines) < MOST_LINES:
                lines.append(line)


def _line(peer: str, what: str, error: Exception, *, is_here: bool = False) -> str:
    begin = f"{peer}: {what} is not taken here" if is_here else f"{peer} does not take {what}"
    why = reason(error)
    if status_of(error) == NOT_TRAINED:
        why = f"it is not trained {'here' if is_here else 'there'}{DIFFERS}"
    return f"{begin}: {why}"
