"""A gang on CPUs whose messages wait for each other as NCCL's do, over gloo:
`python -m tests.parity.gang tests.parity.nccl_like a/run.json ...`

gloo sends a message whether or not the other rank has asked for it, so that any order of sends and receives
goes through. NCCL runs what one pair of ranks exchanges in the order of the calls, each when the one before
has ended, and a send ends when it was received; a call of `batch_isend_irecv` is one, in the order of its
group (torch 2.13, ProcessGroupNCCL::pointToPoint). Here too: `Lane` is such a queue. A message that waits
longer than NCCL_LIKE_S seconds fails, and the error lists the queue. Collectives fail where ranks call
different ones. Stricter than NCCL in one point: a collective waits for all batches of its group before this
rank does anything else. Not checked: collectives that torch calls without Python's torch.distributed.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from atelier.engine.config.parallel import Parallel
from atelier.engine.parallel.gang import start_gang
from tests.parity import gang

PATIENCE_S = float(os.environ.get("NCCL_LIKE_S", "60"))
DATA, ACK = 101, 102  # tags of messages alone; of batches the next two hundred
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single",
    "broadcast", "barrier",
)  # fmt: skip

isend, irecv, all_gather = c10d.isend, c10d.irecv, c10d.all_gather


class Message(NamedTuple):
    is_sent: bool
    tensor: Tensor
    peer: int  # rank in the world
    group: Any

    def start(self, tag: int) -> Callable[[], None]:
        """Start over gloo; the function that waits for the end: a send's when the other has received it."""
        note = torch.zeros(1)
        act, answer = (isend, irecv) if self.is_sent else (irecv, isend)
        works = [act(self.tensor, self.peer, self.group, tag)]
        if self.is_sent:
            works.append(answer(note, self.peer, self.group, tag + 1))

        def wait() -> None:
            for work in works:
                assert work is not None  # this rank is in the group
                work.wait()
            if not self.is_sent:
                last = answer(note, self.peer, self.group, tag + 1)
                assert last is not None  # as above
                last.wait()

        return wait

    def __str__(self) -> str:
        return f"{'send to' if self.is_sent else 'receive from'} {self.peer} {[*self.tensor.shape]}"


class Call:
    """Messages that are one call; a Work of torch for the caller."""

    def __init__(self, lane: "Lane", messages: list[Message]) -> None:
        self._lane, self.messages, self._end = lane, messages, threading.Event()

    def wait(self, timeout: object = None) -> bool:
        if not self._end.wait(PATIENCE_S):
            raise RuntimeError(f"rank {dist.get_rank()} hangs: {self._lane}")
        return True

    def is_completed(self) -> bool:
        return self._end.is_set()

    def run(self, tag: int) -> None:
        received_first = sorted(self.messages, key=lambda message: message.is_sent)
        for wait in [message.start(tag) for message in received_first]:
            wait()
        self._end.set()

    def __str__(self) -> str:
        return " with ".join(map(str, self.messages))


class Lane:
    """Calls that run one after another."""

    def __init__(self, tag: int) -> None:
        self._tag = tag
        self._waiting: queue.Queue[Call] = queue.Queue()
        self.calls: list[Call] = []
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, messages: list[Message]) -> Call:
        call = Call(self, messages)
        self.calls = [each for each in self.calls if not each.is_completed()] + [call]
        self._waiting.put(call)
        return call

    def _run(self) -> None:
        while True:
            self._waiting.get().run(self._tag)

    def __str__(self) -> str:
        return ", then ".join(str(call) for call in self.calls if not call.is_completed())


class Lanes:
    """Of each pair of ranks in a group, and of each group's batches."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], Lane] = {}

    def of_pair(self, group: Any, peer: int) -> Lane:
        return self._lane((self._name(group), peer), DATA)

    def of_batches(self, group: Any) -> Lane:
        return self._lane((self._name(group), -1), DATA + 200)

    def finish(self, group: Any) -> None:
        """Wait for all batches of a group."""
        if lane := self._lanes.get((self._name(group), -1)):
            for call in lane.calls:
                call.wait()

    def _name(self, group: Any) -> str:
        return (group or dist.group.WORLD).group_name

    def _lane(self, key: tuple[str, int], tag: int) -> Lane:
        if key not in self._lanes:
            self._lanes[key] = Lane(tag)
        return self._lanes[key]


lanes = Lanes()


def _message(is_sent: bool, tensor: Tensor, peer: int | None, group: Any, group_peer: int | None) -> Message:
    if peer is None:
        assert group_peer is not None  # one of the two is given
        peer = dist.get_global_rank(group or dist.group.WORLD, group_peer)
    return Message(is_sent, tensor, peer, group)


def _isend(
    tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Call:
    message = _message(True, tensor, dst, group, group_dst)
    return lanes.of_pair(group, message.peer).add([message])


def _irecv(
    tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Call:
    message = _message(False, tensor, src, group, group_src)
    return lanes.of_pair(group, message.peer).add([message])


def _send(*given: Any, **named: Any) -> None:
    _isend(*given, **named).wait()


def _recv(tensor: Tensor, *given: Any, **named: Any) -> None:
    _irecv(tensor, *given, **named).wait()


def _batch(operations: list[dist.P2POp]) -> list[Call]:
    group = operations[0].group
    messages = [_message(each.op is _isend, each.tensor, each.peer, each.group, None) for each in operations]
    return [lanes.of_batches(group).add(messages)]


def _in_order(name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        lanes.finish(group := named.get("group"))
        sizes = [(each.numel(), str(each.dtype)) for each in given if isinstance(each, Tensor)]
        _check_alike(f"{name} {[] if name == 'all_to_all_single' else sizes}", group)
        return collective(*given, **named)

    return call


def _check_alike(mine: str, group: Any) -> None:
    """Raise RuntimeError unless all ranks of the group call the same."""
    here = torch.zeros(200, dtype=torch.uint8)
    here[: len(mine)] = torch.tensor([*mine.encode()], dtype=torch.uint8)
    found = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
    all_gather(found, here, group)
    called = [bytes(each.tolist()).rstrip(b"\0").decode() for each in found]
    if len({*called}) > 1:
        raise RuntimeError(f"mismatch between collectives: {called}")


def install() -> None:
    """Replace what torch.distributed offers, for all that is imported later or looks there when it calls."""
    mine: dict[str, Callable[..., Any]] = {
        "isend": _isend, "irecv": _irecv, "send": _send, "recv": _recv, "batch_isend_irecv": _batch
    }  # fmt: skip
    mine |= {name: _in_order(name, getattr(c10d, name)) for name in COLLECTIVES}
    for name, function in mine.items():
        setattr(dist, name, function)
        setattr(c10d, name, function)


def broken(name: str) -> None:
    """What hangs or fails with NCCL: sends before receives on both sides, collectives that differ."""
    pair = start_gang(Parallel(replicate=2, threads=1, device="cpu"))
    mine = torch.full((3,), float(pair.rank))
    if name == "sends first":
        calls = [dist.isend(mine, 1 - pair.rank), dist.irecv(torch.empty(3), 1 - pair.rank)]
        for call in calls:
            assert call is not None
            call.wait()
    elif name == "other sizes":
        dist.all_reduce(mine[: 2 + pair.rank])
    elif name == "together":
        theirs = torch.empty(3)
        other = 1 - pair.rank
        for call in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        ):
            call.wait()
        assert theirs.tolist() == [float(other)] * 3


def main(words: list[str]) -> int:
    install()
    if "/" not in words[0]:
        broken(words[0])
        return 0
    return gang.main(words)
