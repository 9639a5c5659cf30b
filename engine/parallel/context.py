"""Context parallelism: a row's tokens are split over the context axis; each rank computes its own tokens,
attention gathers all keys and values (the all-gather form of Llama 3, 2407.21783, section 3.3.2).

Of 2 C equal chunks of a row, rank c has the c-th and the c-th from the end, so that causal attention costs
all ranks the same.
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from atelier.engine.config.batch import PLACES, batch_tensor
from atelier.engine.model.contract import Relations
from atelier.engine.parallel.collective import gather_rows
from atelier.engine.parallel.grid import Grid

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def places(length: int, grid: Grid) -> Tensor:
    """The positions [T / C] of this rank's tokens in a row of `length` tokens."""
    size, index = grid.axes.context, grid.places["context"]
    chunk = length // (2 * size)
    first = torch.arange(index * chunk, (index + 1) * chunk)
    return torch.cat([first, first + (2 * size - 1 - 2 * index) * chunk])


def own_tokens(batch: dict[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """This rank's tokens of a batch of whole rows, their places, and the tensors kept for whole rows."""
    if grid.axes.context == 1:
        return batch
    mine = dict(batch)
    for name, value in batch.items():
        entry = batch_tensor(name)
        if not entry.length:
            continue
        dim = entry.dims.index(entry.length)
        here = places(value.shape[dim], grid).to(value.device)
        mine[name] = value.index_select(dim, here)
        mine[PLACES[entry.length]] = here
        if entry.whole:
            mine[entry.whole] = value
    return mine


def gather_keys(model: nn.Module, grid: Grid) -> None:
    """Make every attention of the plain model use keys and values of whole rows, in place."""
    group = grid.group("context")
    if group is None:
        return
    for module in model.modules():
        attend = getattr(module, "attend", None)
        if isinstance(attend, nn.Module):
            size, index = grid.axes.context, grid.places["context"]
            inner, is_causal = attend.forward, bool(attend.is_causal)
            attend.forward = functools.partial(_attend_all, inner, group, size, index, is_causal=is_causal)


def _attend_all(
    attend: Attend,
    group: ProcessGroup,
    size: int,
    index: int,
    query_BHTE: Tensor,
    key_BKTE: Tensor,
    value_BKTE: Tensor,
    mask_B1TS: Tensor,
    *,
    is_causal: bool,
) -> Tensor:
    """Attention of this rank's two chunks, each over keys up to its own end if the mask is causal; ends of
    documents in place of a mask are those of whole rows.
    """
    num_keys = key_BKTE.shape[1]
    both = in_order(gather_rows(torch.cat([key_BKTE, value_BKTE], dim=1), group), size, dim=2)
    key_BKSE, value_BKSE = both[:, :num_keys], both[:, num_keys:]
    if not is_causal:
        return attend(query_BHTE, key_BKSE, value_BKSE, mask_B1TS)
    chunk = query_BHTE.shape[2] // 2
    mixed = []
    for half, number in enumerate((index, 2 * size - 1 - index)):
        own, end = slice(half * chunk, (half + 1) * chunk), (number + 1) * chunk
        mask = mask_B1TS if mask_B1TS.dtype == torch.int32 else mask_B1TS[:, :, own, :end]
        mixed.append(attend(query_BHTE[:, :, own], key_BKSE[:, :, :end], value_BKSE[:, :, :end], mask))
    return torch.cat(mixed, dim=2)


def whole_keys(relations: Relations, grid: Grid) -> Relations:
    """Queries of this rank's tokens and keys of whole rows."""
    group = grid.group("context")
    if group is None:
        return relations
    keys = in_order(gather_rows(relations.key_BKTE, group), grid.axes.context, dim=2)
    return Relations(relations.query_BHTE, keys)


def over_context(part: Tensor, grid: Grid) -> Tensor:
    """The sum of `part` over ranks with tokens of the same rows; differentiable."""
    group = grid.group("context")
    return part if group is None else gather_rows(part, group).sum(0)


def in_order(parts_CX: Tensor, size: int, dim: int) -> Tensor:
    """Whole rows from the parts of `size` ranks, [C, ...]; `dim`: token dimension of a part."""
    halves = [part.chunk(2, dim=dim) for part in parts_CX.unbind(0)]
    firsts, lasts = zip(*halves, strict=True)
    return torch.cat([*firsts, *reversed(lasts)], dim=dim)
