"""What all transfers between agents have: frames, patience, and how their errors read."""

from collections.abc import Callable

import grpc

BLOCK = 1 << 20  # bytes of a frame
SLOWEST = 10_000  # bytes a second
TIMEOUT_S = 30.0  # of a call without a body
NEVER = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)  # codes of a refusal


def patience(size: int) -> float:
    """Seconds after which a transfer of so many bytes is broken off; it goes on where it stopped."""
    return TIMEOUT_S + size / SLOWEST


def is_settled(send: Callable[[], None], on_refused: Callable[[str], None]) -> bool:
    """Send something; True when the peer has it or will never take it, of which `on_refused` gets the reason,
    False when it does not take it yet. Raises RpcError for anything else.
    """
    try:
        send()
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code not in (*NEVER, grpc.StatusCode.ABORTED):
            raise
        if code in NEVER:
            on_refused(reason(error))
        return code in NEVER
    return True


def reason(error: Exception) -> str:
    """One line of what went wrong."""
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return f"{error.code().name.lower()}: {' '.join(str(error.details()).split())[:300]}"
    return str(error)
