"""Refusals and retries between agents. A final refusal is reported at once, an early one when it lasts. One
failing item or group blocks no other.
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

OF_ONE = (*NEVER, *EARLY, grpc.StatusCode.UNKNOWN)  # the peer has answered; others are of the connection
MOST_REMEMBERED = 100_000  # keys
MOST_EARLY = 10_000  # trainings and notes, of all peers, that are refused as early
MOST_LINES = 300  # of a peer, until they are printed
MOST_LATER_S = 600.0  # the longest time between two tries of an item
LASTS_S = 30.0  # an early refusal is reported after so long
DIFFERS = "; if both sites train, their settings, data or tokenizers differ: compare both configurations"


Key = TypeVar("Key")


class CompletedKeys(Generic[Key]):
    """The last `most` keys of items that are completed with a peer."""

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
    """Retries with a peer, by key. The wait after a damaged item doubles each time, up to `MOST_LATER_S`. The
    last `MOST_REMEMBERED` keys are kept.
    """

    def __init__(self) -> None:
        self._known: dict[Key, tuple[float, float]] = {}  # time of the retry, and seconds of the wait
        self._lock = threading.Lock()

    def is_due(self, what: Key) -> bool:
        return time.monotonic() >= self._known.get(what, (0.0, 0.0))[0]

    def has_failed(self, what: Key) -> bool:
        """Whether it has failed since its last success."""
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
    """Whether an error is about one item; otherwise the peer does not answer at all."""
    return not isinstance(error, grpc.RpcError) or code_of(error) in OF_ONE


def refused_with(error: NotTaken) -> grpc.StatusCode:
    """The status code of a refusal, for the peer."""
    if error.lacks:
        return NOT_TRAINED if error.lacks == "training" else NOT_NEXT
    codes = {"early": grpc.StatusCode.ABORTED, "over": OVER, "never": grpc.StatusCode.FAILED_PRECONDITION}
    return codes[error.when]


def is_damage_here(error: AtelierError, peer: str) -> bool:
    """Whether an error is about this site's own files, not about data from `peer`."""
    return isinstance(error, DamageError) and error.place != peer


def refusal(error: AtelierError, peer: str, audit: Audit) -> CallError:
    """The error with which a call ends. Final refusals and damage at this site are logged; after damage here
    the peer may retry.
    """
    if is_damage_here(error, peer):  # no fault of the request
        audit.complain(str(error))
        text = "a file is damaged at this site; see the log of its agent"
        return CallError(grpc.StatusCode.ABORTED, text)
    if not isinstance(error, NotTaken) or error.when == "never":
        audit.add("refused", who=peer, why=str(error))
    if isinstance(error, NotTaken):
        return CallError(refused_with(error), str(error))
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def ending(error: Exception, peer: str, audit: Audit) -> CallError:
    """The error with which a call ends: as `refusal`, or for a fault of this site only the name of the error;
    its text is in the log here.
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
    return CallError(grpc.StatusCode.UNKNOWN, f"{type(error).__name__} there; see the log of that agent")


def status_of(error: Exception) -> grpc.StatusCode | None:
    """The status code of a refusal, here or by a peer."""
    if isinstance(error, NotTaken):
        return refused_with(error)
    return code_of(error) if isinstance(error, grpc.RpcError) else None


class Apart:
    """Runs blocks one by one and raises their first error at the end."""

    def __init__(self) -> None:
        self._problems: list[Exception] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """Run one block. Raises RpcError if the peer does not answer at all."""
        try:
            yield
        except (AtelierError, OSError, grpc.RpcError) as error:
            if not is_of_one(error):
                raise
            self._problems.append(error)

    def end(self) -> None:
        """Raises the first error of all blocks."""
        if self._problems:
            raise self._problems[0]


@dataclass
class _Early:
    """An early refusal: of which item, and since when."""

    what: str
    since: float
    is_said: bool = False


class Refusals:
    """The refusals by peer, each reported once for an item."""

    def __init__(self) -> None:
        self._early: dict[tuple[str, str], _Early] = {}  # by peer and training, of its next message
        self._lines: dict[str, list[str]] = {}  # not printed yet
        self._lock = threading.Lock()  # each peer, and its notes, have a thread

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
        """The next message of a training is no longer refused."""
        with self._lock:
            known = self._early.pop((peer, training), None)
        if known is not None and known.is_said:
            self._say(peer, f"{peer}: {known.what} is accepted now")

    def lines(self, peer: str) -> list[str]:
        """Take the lines to print."""
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
