"""Local shards and full tensors of DTensors (plain tensors pass unchanged); also whether a device computes in
16 bits.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard, cast, overload

import torch
from torch import Tensor

from atelier.engine.config.tested import is_on
from atelier.engine.io import machine

if TYPE_CHECKING:  # takes a second to load, which processes without a gang save
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def is_placed(tensor: Tensor | None) -> "TypeGuard[DTensor]":
    """Whether it is a DTensor; where nothing has loaded them, none is."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def has_half(device: torch.device) -> bool:
    """Whether bf16 products are faster on `device`. CPUs without AVX-512 (most laptops) compute them in
    software, 60 times slower than float32; there `precision: bf16` runs in float32, which is more exact.
    """
    if device.type != "cpu":
        return True
    if not is_on("half"):
        return machine.has_half()
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@overload
def local(tensor: Tensor) -> Tensor: ...
@overload
def local(tensor: None) -> None: ...
def local(tensor: Tensor | None) -> Tensor | None:
    """This rank's shard of a DTensor; anything else unchanged."""
    return tensor.to_local() if is_placed(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The full tensor on every rank (a collective if it is sharded)."""
    return tensor.full_tensor() if is_placed(tensor) else tensor


def fill(weight: Tensor, full: Callable[[], Tensor]) -> None:
    """Set a weight, or this rank's shard of it, from the full one, without communication."""
    with torch.no_grad():
        local(weight).copy_(part_like(full(), weight))


def part_like(full: Tensor, weight: Tensor) -> Tensor:
    """This rank's shard of `full` in the placement of `weight`."""
    return region(full, *box(weight)) if is_placed(weight) else full


def box(weight: "DTensor") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of this rank's shard, and where it begins in the full tensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)


def region(full: Tensor, shape: Sequence[int], offset: Sequence[int]) -> Tensor:
    """The part of `full` in a box; an empty box may begin beyond its end."""
    for dim, (begin, length) in enumerate(zip(offset, shape, strict=True)):
        full = full.narrow(dim, min(begin, full.shape[dim]), length)
    return full


def like(full: Tensor, weight: Tensor) -> Tensor:
    """`full` as a DTensor in the placement of `weight`."""
    if not is_placed(weight):
        return full
    return as_placed(part_like(full, weight).contiguous(), weight)


def together(tensor: Tensor) -> Tensor:
    """A tensor [X, ...] with all dims but dim 0 whole on every rank; dim 0 stays split."""
    if not is_placed(tensor):
        return tensor
    from torch.distributed.tensor import Replicate

    places = [place if place.is_shard(0) else Replicate() for place in tensor.placements]
    return tensor.redistribute(placements=places)


def as_placed(part: Tensor, weight: Tensor) -> Tensor:
    """`part`, this rank's shard, as a tensor in the placement of `weight`; not copied."""
    if not is_placed(weight):
        return part
    if part.device.type != weight.device_mesh.device_type:  # from_local would copy it to the mesh's device
        return type(weight)(part, weight._spec, requires_grad=False)
    return type(weight).from_local(
        part,
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )


def back_from(part: Tensor, given: Tensor, weight: Tensor) -> Tensor:
    """Convert `part`, this rank's shard in the placement of `given`, to that of `weight`."""
    if not is_placed(given) or not is_placed(weight):
        return part
    placed = cast("DTensor", as_placed(part.contiguous(), given))
    return placed.redistribute(placements=weight.placements)


def is_split(tensor: Tensor, axis: str) -> bool:
    """Whether the ranks along a mesh axis hold different shards of a tensor."""
    if not is_placed(tensor):
        return False
    axes = tensor.device_mesh.mesh_dim_names or ()
    return axis in axes and not tensor.placements[axes.index(axis)].is_replicate()


def settle_gradient(weight: Tensor) -> None:
    """Redistribute a gradient, which may be a partial sum, to its weight's placement."""
    gradient = weight.grad
    if is_placed(gradient) and is_placed(weight):
        weight.grad = gradient.redistribute(placements=weight.placements)


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """The tensors grouped by mesh; foreach operations need one mesh."""
    found: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device_mesh if is_placed(tensor) else None, []).append(tensor)
    return list(found.values())
