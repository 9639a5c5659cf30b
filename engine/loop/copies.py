"""Ranks that hold copies of the same weights compare exact sums of their bits: a flipped one is found, and
whose it is.

Compared before every checkpoint, so that whatever was written held when all agreed.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from engine.checkpoint.state import tensors_of
from engine.loop.member import Member, local
from engine.parallel import Gang
from engine.spec.error import CopiesError

PIECE = 1 << 22  # elements summed at once
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensor: Tensor) -> Tensor:
    """Two whole numbers, shape (2,) int64: the sum of the tensor's words, plain and weighted by 1, 2, 3 ...

    Exact modulo 2^64: any single changed bit changes both; no order of summation does.
    """
    flat = tensor.detach().contiguous().view(-1)
    flat = flat.view(_WORDS[flat.element_size()])
    result = torch.zeros(2, dtype=torch.int64, device=flat.device)
    for first in range(0, flat.numel(), PIECE):
        words = flat[first : first + PIECE].to(torch.int64)
        places = torch.arange(first + 1, first + 1 + len(words), device=flat.device)
        result += torch.stack([words.sum(), (words * places).sum()])
    return result


def held_tensors(members: Sequence[Member]) -> dict[str, Tensor]:
    """Every tensor of the roles that this rank holds a part of: weights and optimiser states."""
    found: dict[str, Tensor] = {}
    for member in members:
        mine = {"weights": {name: weight.detach() for name, weight in member.model.named_parameters()}}
        whole = tensors_of(mine | ({"optimizer": member.state()["optimizer"]} if member.moves else {}))
        found |= {f"{member.name}.{name}": local(tensor) for name, tensor in whole.items()}
    return found


def holders(gang: Gang) -> dist.ProcessGroup | None:
    """The ranks that hold the same part of the weights as this one; None when it is the only one."""
    if gang.mesh is None or gang.mesh["replicate"].size() == 1:
        return None
    return gang.mesh["replicate"].get_group()


def compare(
    tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None, device: torch.device
) -> dict[int, str]:
    """Ranks of `group` whose tensors differ from those of most, with the first tensor that does; all of them
    where no value has a majority. A collective of the group.
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


def check_copies(members: Sequence[Member], gang: Gang, step: int) -> None:
    """Refuse to go on, on every rank, when copies of the roles' weights differ anywhere; names the ranks. A
    collective.
    """
    group = holders(gang)
    if group is None:
        return
    tensors = held_tensors(members)
    suspects = compare(tensors, group, gang.device)
    names = list(tensors)
    marks = torch.zeros(gang.world, dtype=torch.int64, device=gang.device)
    if gang.rank in suspects:
        marks[gang.rank] = names.index(suspects[gang.rank]) + 1
    found = {rank: int(mark) for rank, mark in enumerate(gang.sum(marks).tolist()) if mark}
    if not found:
        return
    ranks = " and ".join(map(str, found))
    name = names[min(found.values()) - 1]
    copies = dist.get_world_size(group)
    whose = f"rank {ranks} has" if len(found) == 1 else f"ranks {ranks} have"
    doubt = "; of two copies nobody knows which is right" if copies == 2 else ""
    raise CopiesError(
        f"step {step}: {whose} other bits than the other copies of {name}{doubt}; no checkpoint holds them: "
        "run again to go on from the last one, on another machine if it happens again"
    )
