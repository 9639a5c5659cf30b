"""What all transfers between agents have: frames, patience, how bytes are offered and pushed, and how their
errors read.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import grpc

from atelier.engine.config.document import parse_object

BLOCK = 1 << 20  # bytes of a frame
SLOWEST = 10_000  # bytes a second
TIMEOUT_S = 30.0  # of a call without a body
OVER = grpc.StatusCode.ALREADY_EXISTS  # code of a refusal: whoever refuses has had it
NOT_TRAINED = grpc.StatusCode.NOT_FOUND  # the same: there is no such training yet
NOT_NEXT = grpc.StatusCode.OUT_OF_RANGE  # the same: what comes before it is not there yet
NEVER = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, OVER)  # the same, for good
EARLY = (grpc.StatusCode.ABORTED, NOT_TRAINED, NOT_NEXT)  # the same, for now


class CallChannel(Protocol):
    """What carries calls to a peer: gRPC's own channel, or objects in a bucket (bucket_channel.py)."""

    def unary_unary(self, method: str) -> Callable[..., Any]: ...

    def stream_unary(self, method: str) -> Callable[..., Any]: ...

    def unary_stream(self, method: str) -> Callable[..., Any]: ...

    def close(self) -> None: ...


class CallError(grpc.RpcError):
    """A call that failed without gRPC, with the same codes."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


def code_of(error: grpc.RpcError) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call | CallError) else None


def patience(size: int) -> float:
    """Seconds after which a transfer of so many bytes is broken off; it goes on where it stopped."""
    return TIMEOUT_S + size / SLOWEST


def offered(channel: CallChannel, call: str, head: bytes, peer: str) -> int | None:
    """Where a peer wants the bytes that `head` announces from; None = it has all of them. Raises RpcError
    where it takes none.
    """
    answer = channel.unary_unary(call)(head, timeout=TIMEOUT_S)
    offset = parse_object(answer, peer, "an answer").get("offset")
    return offset if isinstance(offset, int) else None


def push(channel: CallChannel, call: str, begin: bytes, blocks: Iterable[bytes], size: int) -> None:
    """Send `begin`, which says what follows, and the blocks of a file of `size` bytes."""
    channel.stream_unary(call)(chain((begin,), blocks), timeout=patience(size))


def blocks_of(path: Path, offset: int) -> Iterator[bytes]:
    """A file's bytes from `offset` on, in frames."""
    with path.open("rb") as file:
        file.seek(offset)
        yield from iter(lambda: file.read(BLOCK), b"")


def is_settled(
    send: Callable[[], None],
    on_refused: Callable[[grpc.RpcError], None],
    on_early: Callable[[grpc.RpcError], None] = lambda error: None,
) -> bool:
    """Send something; True when the peer has it or will never take it, of which `on_refused` gets the error,
    False when it does not take it yet, of which `on_early` does. Raises RpcError for anything else.
    """
    try:
        send()
    except grpc.RpcError as error:
        code = code_of(error)
        if code not in (*NEVER, *EARLY):
            raise
        (on_refused if code in NEVER else on_early)(error)
        return code in NEVER
    return True


def reason(error: Exception) -> str:
    """One line of what went wrong."""
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call | CallError):
        return f"{error.code().name.lower()}: {' '.join(str(error.details()).split())[:300]}"
    return str(error)
