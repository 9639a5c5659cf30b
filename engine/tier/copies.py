"""Copies between host memory and a device that run beside computation (SE-MoE, 2205.10034: a stream of their
own, pinned memory). Only this file uses streams, events and pinned memory of GPUs; none of it was run on one.
"""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from atelier.engine.config.error import AtelierError


class Event(Protocol):
    """A point in the work given to a device, as torch.cuda.Event."""

    def wait(self) -> None:
        """Make computation that is given to the device from now on wait for this point."""

    def synchronize(self) -> None:
        """Wait here until the device has come to this point."""

    def query(self) -> bool:
        """Whether the device has come to this point."""
        ...


class Copies(Protocol):
    """Starts copies to and from one device."""

    def on_host(self, numbers: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised host memory [numbers] that the device can read and write by itself."""
        ...

    def on_device(self, numbers: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised memory [numbers] of the device."""
        ...

    def record(self) -> Event:
        """The end of the computation given to the device so far."""
        ...

    def start(self, into: Tensor, source: Tensor, after: Sequence[Event], *, is_back: bool) -> Event:
        """Copy once the events have happened; returns the end of the copy. Copies of one direction run in
        order. `is_back`: from the device to the host.
        """
        ...


def copies_to(device: torch.device, *, always: bool = False) -> Copies | None:
    """Copies to `device`. A CPU computes in host memory and needs none: None, or with `always` copies that
    are done when they return.
    """
    if device.type != "cpu":
        return StreamCopies(device)
    return CopiesAtOnce() if always else None


class PastEvent:
    """An event in the past."""

    def wait(self) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class CopiesAtOnce:
    """Copies within a CPU's memory, so that CPUs can run the code for GPUs."""

    def on_host(self, numbers: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(numbers, dtype=dtype)

    on_device = on_host

    def record(self) -> Event:
        return PastEvent()

    def start(self, into: Tensor, source: Tensor, after: Sequence[Event], *, is_back: bool) -> Event:
        into.copy_(source)
        return PastEvent()


class StreamCopies:
    """Copies of a GPU, a stream for each direction: a link carries both at once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams = {is_back: torch.cuda.Stream(device) for is_back in (False, True)}

    def on_host(self, numbers: int, dtype: torch.dtype) -> Tensor:
        """Plain memory, which is then pinned: torch's own pinned memory is rounded up to a power of two."""
        found = torch.empty(max(1, numbers), dtype=dtype)
        try:
            torch.cuda.check_error(_cudart().cudaHostRegister(found.data_ptr(), found.nbytes, 0))
        except RuntimeError as error:  # too much, or not allowed here
            problem = f"{found.nbytes / 1e9:.3g} GB of host memory cannot be pinned: {error}"
            raise AtelierError(problem, "use less parallel.tiers.host_gb, or another machine") from error
        weakref.finalize(self, _unpin, found, list(self._streams.values()))
        return found

    def on_device(self, numbers: int, dtype: torch.dtype) -> Tensor:
        found = torch.empty(numbers, dtype=dtype, device=self.device)
        for stream in self._streams.values():
            found.record_stream(stream)  # once freed, it is not used again before these streams are done
        return found

    def record(self) -> Event:
        return torch.cuda.current_stream(self.device).record_event()

    def start(self, into: Tensor, source: Tensor, after: Sequence[Event], *, is_back: bool) -> Event:
        stream = self._streams[is_back]
        with torch.cuda.stream(stream):
            for event in after:
                event.wait()  # the current stream, which is the copies'
            into.copy_(source, non_blocking=True)
        return stream.record_event()


def _unpin(memory: Tensor, streams: Sequence[torch.cuda.Stream]) -> None:
    for stream in streams:
        stream.synchronize()
    _cudart().cudaHostUnregister(memory.data_ptr())


def _cudart() -> Any:
    """CUDA's own functions, of which torch gives no types."""
    return torch.cuda.cudart()
