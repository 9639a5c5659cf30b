"""The embedding split by columns over the data ranks, never gathered (embedding partition of SE-MoE,
2205.10034, section 3.4): every rank looks up its columns of all ranks' tokens, and one all-to-all gives each
rank the whole rows of its own tokens; backward, another gives the columns' gradients.

C ranks, N tokens here, M of all ranks, V vocabulary, D hidden
"""

import functools

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor

from atelier.engine.model.contract import Model
from atelier.engine.model.placement import local
from atelier.engine.parallel.collective import Exchange, Traffic, all_parts
from atelier.engine.parallel.grid import Grid


def split_embedding(model: Model, grid: Grid, dtype: torch.dtype, traffic: Traffic | None = None) -> None:
    """Split the embedding of the plain model's vocabulary in place, if it is here; its rows are sent as
    `dtype`. What a rank sends to others is counted in `traffic`.
    """
    mesh = grid.flat_mesh("dense")
    if mesh is None or mesh.size() == 1:
        return
    here = dict(model.named_modules())  # a stage may have none
    for path, split in model.splits().items():
        module = here.get(path)
        if split == "vocabulary" and isinstance(module, nn.Embedding):
            placed = distribute_tensor(module.weight.detach(), mesh, [Shard(1)], src_data_rank=None)
            module.weight = nn.Parameter(placed, requires_grad=module.weight.requires_grad)
            module.forward = functools.partial(_looked_up, module, mesh.get_group(), dtype, traffic)


def split_embeddings(model: nn.Module) -> list[nn.Module]:
    """The embeddings that `split_embedding` has split."""
    found = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return [module for module in found if getattr(module.forward, "func", None) is _looked_up]


def _looked_up(
    module: nn.Embedding,
    group: dist.ProcessGroup,
    dtype: torch.dtype,
    traffic: Traffic | None,
    tokens_BT: Tensor,
) -> Tensor:
    """The rows [B, T, D] of this rank's tokens."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    tokens_N = tokens_BT.flatten()
    counts = all_parts(torch.tensor([len(tokens_N)], device=tokens_N.device), group).flatten().tolist()
    tokens_M = _all_tokens(tokens_N, counts, group)
    part_MD = nn.functional.embedding(tokens_M, local(module.weight)).to(dtype)
    is_far = [other != rank for other in range(size)] if traffic is not None else ()
    exchange = Exchange(counts, [len(tokens_N)] * size, group, is_far=is_far, traffic=traffic)
    parts_CND = exchange.start(part_MD)().view(size, *tokens_BT.shape, -1)
    return torch.cat(parts_CND.unbind(), dim=-1)


def _all_tokens(tokens_N: Tensor, counts: list[int], group: dist.ProcessGroup) -> Tensor:
    """The tokens of all ranks [M], in order of the ranks."""
    padded = tokens_N.new_zeros(max(counts))
    padded[: len(tokens_N)] = tokens_N
    every = all_parts(padded, group)
    return torch.cat([row[:count] for row, count in zip(every, counts, strict=True)])
