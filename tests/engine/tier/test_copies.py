"""The streams of a GPU, played by lists of what they are told: what runs where, and after what. No GPU was
there.
"""

import gc
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from atelier.engine.tier.buffers import Buffers, TransferThreads
from atelier.engine.tier.copies import StreamCopies
from atelier.engine.tier.on_device import DeviceBuffers
from atelier.engine.tier.policy import LeastRecentlyUsed
from tests.engine.tier.test_on_device import FLOATS, Kept

DEVICE = torch.device("cpu")


class Streams:
    """In place of torch.cuda. `told`: (stream, word, event); pinned: addresses."""

    def __init__(self) -> None:
        self.names = ["compute"]
        self.on = ["compute"]
        self.told: list[tuple[str, str, int]] = []
        self.pinned: set[int] = set()
        self.num = 0

    def Stream(self, device: torch.device) -> SimpleNamespace:
        self.names.append(("in", "back")[len(self.names) - 1])
        return self.named(self.names[-1])

    def named(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name,
            record_event=lambda: self.recorded(name),
            synchronize=lambda: self.told.append((name, "synchronize", 0)),
        )

    def recorded(self, name: str) -> SimpleNamespace:
        self.num = number = self.num + 1
        self.told.append((name, "record", number))
        return SimpleNamespace(
            wait=lambda: self.told.append((self.on[-1], "wait", number)),
            query=lambda: False,
            synchronize=lambda: None,
        )

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        return self.named(self.on[-1])

    def stream(self, stream: SimpleNamespace) -> AbstractContextManager[None]:
        @contextmanager
        def inside():
            self.on.append(stream.name)
            yield
            self.on.pop()

        return inside()

    def cudart(self) -> SimpleNamespace:
        def register(address: int, size: int, flags: int) -> str:
            self.pinned.add(address)
            return "success"

        return SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=self.pinned.discard)

    def check_error(self, result: str) -> None:
        assert result == "success"


def test_copies_run_on_streams_of_their_own_and_each_side_waits_for_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams, recorded = Streams(), []
    monkeypatch.setattr(torch, "cuda", streams)
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: recorded.append(stream.name))
    copies = StreamCopies(DEVICE)
    host = Buffers(
        Kept(),
        2,
        LeastRecentlyUsed(),
        TransferThreads(),
        floats=FLOATS,
        dtype=torch.float32,
        memory=copies.on_host,
    )
    buffers = DeviceBuffers(host, 1, copies)
    assert len(streams.pinned) == 1 and sorted(recorded) == ["back", "in"]
    for unit in (0, 1):
        with buffers.held(unit, changes=True):
            pass
    assert streams.told == [
        ("in", "record", 1),
        ("compute", "wait", 1),
        ("compute", "record", 2),
        ("back", "wait", 1),
        ("back", "wait", 2),
        ("back", "record", 3),
        ("in", "wait", 3),  # the only buffer is copied back first
        ("in", "record", 4),
        ("compute", "wait", 4),
        ("compute", "record", 5),
        ("back", "wait", 4),
        ("back", "wait", 5),
        ("back", "record", 6),
    ]
    buffers.finish()
    del buffers, host, copies
    gc.collect()
    assert not streams.pinned and ("in", "synchronize", 0) in streams.told
