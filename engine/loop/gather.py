"""Gather a role's weights on rank 0, one whole weight at a time, from the ranks' shards.

Other ranks send their pieces to the first rank of their stage, which assembles the weight and sends it to
rank 0. So no rank holds more than its own share and one weight.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.placement import box, region
from atelier.engine.model.weights import Weight, bytes_of
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid

About = tuple[str, tuple[int, ...], torch.dtype]


def live_weights(member: RoleState) -> dict[str, Weight]:
    """The role's weights by name in the plain model; the first stage's if several stages hold one. A
    collective, as is each weight's `gather`: all ranks call the same in the same order.

    It uses the gang's own group with CPU tensors, because the second group may be writing a checkpoint.
    """
    held = {name: weight.detach() for name, weight in member.weights.stored().items()}
    return gathered(held, member.grid, member.gang)


def gathered(held: Mapping[str, Tensor], grid: Grid, gang: Gang) -> dict[str, Weight]:
    """As `live_weights`, for any tensors that are placed like a role's weights."""
    found: dict[str, Weight] = {}
    for leader in range(0, grid.pipeline * grid.axes.ranks, grid.axes.ranks):
        is_mine = leader <= gang.rank < leader + grid.axes.ranks
        for name, shape, dtype in _known_to_all(held, leader, gang):
            piece = held[name] if is_mine else None
            found.setdefault(
                name, Weight(shape, dtype, partial(_gather, piece, shape, dtype, leader=leader, gang=gang))
            )
    return found


def digest_of(weights: Mapping[str, Weight], gang: Gang) -> str:
    """The digest of all weights, independent of the layout. A collective."""
    found = hashlib.sha256()
    for name in sorted(weights):
        shape, dtype, gather = weights[name]
        if (whole := gather()) is not None:
            found.update(f"{name} {[*shape]} {dtype}\n".encode())
            found.update(bytes_of(whole))
    return gang.from_first(found.hexdigest())


def _known_to_all(held: Mapping[str, Tensor], leader: int, gang: Gang) -> list[About]:
    """The tensors that rank `leader` holds, known on every rank."""
    about = [(name, tuple(weight.shape), weight.dtype) for name, weight in held.items()]
    if gang.world == 1:
        return about
    message = [about]
    dist.broadcast_object_list(message, src=leader, group=gang.group)
    return message[0]


def _gather(
    piece: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, *, leader: int, gang: Gang
) -> Tensor | None:
    gang.heartbeat.at("gather")
    whole = None if piece is None else _assembled(piece, leader, gang)
    if gang.rank == leader != 0 and whole is not None:
        dist.send(whole.contiguous(), dst=0, group=gang.group)
    if not gang.is_first:
        return None
    if leader != 0:
        whole = torch.empty(shape, dtype=dtype)
        dist.recv(whole, src=leader, group=gang.group)
    return whole


def _assembled(piece: Tensor, leader: int, gang: Gang) -> Tensor | None:
    """The whole weight on the CPU of rank `leader`; None on the other ranks of its stage."""
    senders = list(_owners(piece, leader)) if isinstance(piece, DTensor) else [leader]
    if gang.rank not in senders:
        return None
    if not isinstance(piece, DTensor):
        return piece.cpu()
    mine = piece.to_local().cpu()
    if senders == [leader]:
        return mine
    shape, offset = box(piece)
    if gang.rank != leader:
        dist.send(torch.tensor([*shape, *offset]), dst=leader, group=gang.group)
        if mine.numel():
            dist.send(mine.contiguous(), dst=leader, group=gang.group)
        return None
    whole = torch.empty(piece.shape, dtype=piece.dtype)
    region(whole, shape, offset).copy_(mine)
    for rank in senders:
        if rank != leader:
            _receive(whole, rank, gang)
    return whole


def _owners(weight: DTensor, leader: int) -> Iterator[int]:
    """The ranks whose pieces make up a weight, one per set of replicas; none on a rank other than
    `leader`.
    """
    ranks = weight.device_mesh.mesh
    at = (ranks == leader).nonzero()
    if len(at):
        which = [
            slice(int(place), int(place) + 1) if placement.is_replicate() else slice(None)
            for place, placement in zip(at[0], weight.placements, strict=True)
        ]
        yield from ranks[tuple(which)].flatten().tolist()


def _receive(whole: Tensor, rank: int, gang: Gang) -> None:
    """Receive the piece of `rank` into the whole weight, directly if its place is contiguous."""
    about = torch.empty(2 * whole.dim(), dtype=torch.long)
    dist.recv(about, src=rank, group=gang.group)
    numbers = about.tolist()
    shape, offset = numbers[: whole.dim()], numbers[whole.dim() :]
    place = region(whole, shape, offset)
    if not place.numel():
        return
    part = place if place.is_contiguous() else torch.empty(shape, dtype=whole.dtype)
    dist.recv(part, src=rank, group=gang.group)
    if part is not place:
        place.copy_(part)
