"""What all transfers between agents have: frames, patience, and how their errors read."""

import grpc

BLOCK = 1 << 20  # bytes of a frame
SLOWEST = 10_000  # bytes a second
TIMEOUT_S = 30.0  # of a call without a body


def patience(size: int) -> float:
    """Seconds after which a transfer of so many bytes is broken off; it goes on where it stopped."""
    return TIMEOUT_S + size / SLOWEST


def reason(error: Exception) -> str:
    """One line of what went wrong."""
    if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
        return f"{error.code().name.lower()}: {' '.join(str(error.details()).split())[:300]}"
    return str(error)
