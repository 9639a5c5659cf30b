"""Check for silent data corruption: ranks with replicas of the same weights compare exact checksums, which
show a flipped bit and its rank.

It runs before every checkpoint, so a checkpoint is only written while all replicas agree.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from atelier.engine.config.error import CopiesError
from atelier.engine.loop.role_state import RoleState
from atelier.engine.parallel.gang import Gang

COPYING = ("replicate", "tensor")  # along other axes every rank has its own shard
PIECE = 1 << 22  # elements summed at once
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensor: Tensor) -> Tensor:
    """A checksum of two integers, shape (2,) int64: the sums of the tensor's words, plain and weighted by 1,
    2, 3 ...

    Exact modulo 2^64: a single changed bit changes both, the order of summation neither.
    """
    flat = tensor.detach().contiguous().view(-1)
    flat = flat.view(_WORDS[flat.element_size()])
    result = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for first in range(0, flat.numel(), PIECE):
        words = flat[first : first + PIECE].to(torch.int64)
        places = torch.arange(first + 1, first + 1 + len(words), device=flat.device)
        result += torch.stack([words.sum(), (words * places).sum()])
    return result


def compare(
    tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None, device: torch.device
) -> dict[int, str]:
    """The ranks of `group` whose tensors differ from the majority's, with the first tensor that differs; all
    ranks if there is no majority. A collective of the group.
    """
    if group is None or not tensors:
        return {}
    mine = torch.stack([digest(tensor).to(device) for tensor in tensors.values()])
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    by_rank = dict(zip(dist.get_process_group_ranks(group), (each.tolist() for each in found), strict=True))
    suspects: dict[int, str] = {}
    for place, name in enumerate(tensors):
        values = {rank: tuple(digests[place]) for rank, digests in by_rank.items()}
        voices = list(values.values())
        right = next((value for value in voices if 2 * voices.count(value) > len(voices)), None)
        for rank, value in values.items():
            if value != right:
                suspects.setdefault(rank, name)
    return suspects


def check_copies(members: Sequence[RoleState], gang: Gang, step: int) -> None:
    """Raise CopiesError, which names the ranks, on every rank if replicas of the roles' weights differ. A
    collective.
    """
    found: dict[str, list[int]] = {}
    copies = 0
    for member in members:
        for axis in COPYING:
            group = member.grid.group(axis)
            if member.grid.sizes[axis] == 1:
                continue
            tensors = member.weights.held_by_all(axis)
            suspects = compare(tensors, group, gang.device)
            for rank, name in _all_suspects(suspects, member, gang).items():
                found.setdefault(f"{member.name}.{name}", []).append(rank)
                copies = member.grid.sizes[axis]
    if not found:
        return
    name = next(iter(found))
    bad = sorted({rank for each in found.values() for rank in each})
    ranks = " and ".join(map(str, bad))
    whose = f"rank {ranks} has" if len(bad) == 1 else f"ranks {ranks} have"
    doubt = "; with two copies it is unknown which is right" if copies == 2 else ""
    raise CopiesError(
        f"step {step}: {whose} other bits than the other copies of {name}{doubt}; no checkpoint holds"
        " them: run again to resume from the last one, on another machine if it happens again"
    )


def _all_suspects(suspects: dict[int, str], member: RoleState, gang: Gang) -> dict[int, str]:
    """Every suspected rank of the gang with the weight; the same result on all ranks."""
    marks = torch.zeros(gang.world, dtype=torch.int64, device=gang.device)
    if gang.rank in suspects:
        marks[gang.rank] = 1 + member.weights.every_name.index(suspects[gang.rank].split(" ")[0])
    return {
        rank: member.weights.every_name[int(mark) - 1]
        for rank, mark in enumerate(gang.sum(marks).tolist())
        if mark
    }
