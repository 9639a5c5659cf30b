"""The calls that an agent answers, whatever carries them: by name, what is called with the request and the
peer that asks, and how a refusal reads.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import NotTaken


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


def refusal(error: AtelierError, peer: str, audit: Audit) -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call that ends with an error; what will never be taken is in the audit log."""
    when = error.when if isinstance(error, NotTaken) else "never"
    if when == "never":
        audit.add("refused", who=peer, why=str(error))
    codes = grpc.StatusCode
    if not isinstance(error, NotTaken):
        return codes.INVALID_ARGUMENT, str(error)
    return codes.ABORTED if when == "early" else codes.FAILED_PRECONDITION, str(error)
