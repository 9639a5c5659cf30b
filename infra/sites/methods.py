"""The calls that an agent answers, whatever carries them: by name, what is called with the request and the
peer that asks, and how a refusal reads.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import grpc

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.error import AtelierError, DamageError
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.refusals import refused_with

AT_ONCE = 8  # calls of a peer that are answered at once: two or three are asked, and some may have been left
ROOM = 3 << 20  # bytes of an answer: a message of gRPC, or an object of a bucket, has 4 MiB
THREADS = 64  # that answer, of all peers


@dataclass(frozen=True)
class Unary:
    """A request, answered with JSON."""

    work: Callable[[bytes, str], Json]


@dataclass(frozen=True)
class StreamedIn:
    """A request in parts, answered with JSON."""

    work: Callable[[Iterator[bytes], str], Json]


@dataclass(frozen=True)
class StreamedOut:
    """A request, answered in parts, which are bytes as they are."""

    work: Callable[[bytes, str], Iterator[bytes]]


Method = Unary | StreamedIn | StreamedOut


def fitting(found: Iterable[Json], most: int) -> list[Json]:
    """As many of these as an answer has room for, at most `most`, at least one."""
    fit, size = list[Json](), 0
    for one in islice(found, most):
        size += len(canonical(one))
        if fit and size > ROOM:
            break
        fit.append(one)
    return fit


def is_damage_here(error: AtelierError, peer: str) -> bool:
    """Whether an error is of this site's own files, not of what `peer` sends."""
    return isinstance(error, DamageError) and error.place != peer


def refusal(error: AtelierError, peer: str, audit: Audit) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call that ends with an error; what will never be taken is in the audit log, and so
    is what is damaged here, of which the peer learns that it may ask again.
    """
    if is_damage_here(error, peer):  # no fault of the request
        audit.complain(str(error))
        return grpc.StatusCode.ABORTED, "something is damaged here; this site's agent says what"
    when = error.when if isinstance(error, NotTaken) else "never"
    if when == "never":
        audit.add("refused", who=peer, why=str(error))
    if not isinstance(error, NotTaken):
        return grpc.StatusCode.INVALID_ARGUMENT, str(error)
    return refused_with(error), str(error)


def ending(error: Exception, peer: str, audit: Audit) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call that ends with an error: `refusal`'s, or for a fault of this site's own, of
    which its log alone has the text, that it is one.
    """
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
    return grpc.StatusCode.UNKNOWN, f"{type(error).__name__} there; that site's agent says more"


def too_many(peer: str) -> str:
    """Why a call more than `AT_ONCE` of a peer is not answered, with the code ABORTED."""
    return f"{AT_ONCE} calls of {peer} are answered already"
