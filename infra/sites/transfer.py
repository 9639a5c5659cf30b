"""Shared parts of the gRPC and bucket transports between sites: peer link, frames, timeouts, status codes."""

from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import grpc

from atelier.infra.sites.sealed import VERSION

SERVICE, FORMER = f"atelier.Exchange{VERSION}", "atelier.Site"  # of this version, and of the one before
AT_ONCE = 8  # calls of a peer that are answered at once: two or three, and some that were abandoned
THREADS = 64  # that answer calls, for all peers
BLOCK = 1 << 20  # bytes of a frame
SLOWEST = 10_000  # bytes a second
TIMEOUT_S = 30.0  # of a call without a body
OVER = grpc.StatusCode.ALREADY_EXISTS  # refused: no longer needed
NOT_TRAINED = grpc.StatusCode.NOT_FOUND  # refused: there is no such training yet
NOT_NEXT = grpc.StatusCode.OUT_OF_RANGE  # refused: an earlier round is missing
NEVER = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, OVER)  # refused for good
EARLY = (grpc.StatusCode.ABORTED, NOT_TRAINED, NOT_NEXT)  # refused for now
CODES = {code.name: code for code in grpc.StatusCode}


class PeerLink(Protocol):
    """Carries calls to a peer: over gRPC, or through files of a bucket (bucket_link.py)."""

    block: int  # bytes of a frame

    def ask(self, call: str, request: bytes, blocks: Iterable[bytes], timeout: float) -> bytes:
        """The answer to a request, which the blocks of a body follow. Raises RpcError."""
        ...

    def get(self, request: bytes, timeout: float) -> Generator[bytes, None, None]:
        """The blocks of a body; to be closed. Raises RpcError."""
        ...

    def close(self) -> None:
        """Its calls end."""
        ...


class CallError(grpc.RpcError):
    """A call that failed without gRPC, with the same codes."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


def code_of(error: Exception) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call | CallError) else None


def patience(size: int) -> float:
    """Seconds after which a transfer of `size` bytes is broken off; it resumes at its last byte."""
    return TIMEOUT_S + size / SLOWEST


def blocks_of(path: Path, offset: int, block: int = BLOCK) -> Iterator[bytes]:
    """A file's bytes from `offset` on, in frames."""
    with path.open("rb") as file:
        file.seek(offset)
        yield from iter(lambda: file.read(block), b"")


def reason(error: Exception) -> str:
    """One line of what went wrong."""
    if isinstance(error, grpc.Call | CallError):
        return f"{error.code().name.lower()}: {' '.join(str(error.details()).split())[:300]}"
    return str(error)
