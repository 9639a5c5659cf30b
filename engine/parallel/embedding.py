"""The embedding split by columns over the data ranks and never gathered (embedding partition of SE-MoE,
2205.10034, section 3.4): each rank looks up its columns for all ranks' tokens; one all-to-all gives each rank
the whole rows of its own tokens, and in the backward pass another one gives the columns' gradients. Replicas
share columns like other weights (engine/parallel/shard.py).

C ranks, N tokens here, M of all ranks, V vocabulary, D hidden
"""

from fnmatch import fnmatch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.model.contract import Model
from atelier.engine.model.placement import local
from atelier.engine.parallel.collective import Exchange, Traffic, all_parts
from atelier.engine.parallel.grid import Grid


def split_embedding(
    model: Model, grid: Grid, dtype: torch.dtype, *, is_even: bool, is_first: bool = True
) -> None:
    """Split the plain model's embedding in place; its rows are sent as `dtype`. `is_even`: all ranks always
    have equally many tokens. Raises ConfigError if a first stage has no embedding.
    """
    mesh = grid.flat_mesh("dense")
    if mesh is None or mesh.size() == 1:
        return
    tables = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and any(fnmatch(path, each) and split == "vocabulary" for each, split in model.splits().items())
    ]
    if is_first and not tables:
        raise ConfigError(
            "parallel.embedding",
            f"columns, but kind {model.spec.kind} declares no embedding as vocabulary",
            "use embedding=gathered, or declare one in its `splits()`",
        )
    for path in tables:
        owner, _, name = path.rpartition(".")
        whole = model.get_submodule(path).get_parameter("weight")
        columns = ColumnEmbedding(whole, mesh, grid, dtype, is_even=is_even)
        setattr(model.get_submodule(owner), name, columns)


class ColumnEmbedding(nn.Module):
    """A rank's columns of an embedding. `traffic`: bytes sent to other nodes."""

    def __init__(
        self, whole: Tensor, mesh: DeviceMesh, grid: Grid, dtype: torch.dtype, *, is_even: bool
    ) -> None:
        super().__init__()
        placed = distribute_tensor(whole.detach(), mesh, [Shard(1)], src_data_rank=None)
        self.weight = nn.Parameter(placed, requires_grad=whole.requires_grad)
        self.dtype, self.is_even, self.group, self.traffic = dtype, is_even, mesh.get_group(), Traffic()
        here = grid.gang.rank // grid.gang.per_node
        ranks = dist.get_process_group_ranks(self.group)
        self.is_far = [rank // grid.gang.per_node != here for rank in ranks]

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """The rows [B, T, D] of this rank's tokens."""
        size, tokens_N = len(self.is_far), tokens_BT.flatten()
        counts = [len(tokens_N)] * size
        if not self.is_even:
            own = torch.tensor([len(tokens_N)], device=tokens_N.device)
            counts = all_parts(own, self.group).flatten().tolist()
        tokens_M = self._all_tokens(tokens_N, counts)
        part_MD = nn.functional.embedding(tokens_M, local(self.weight)).to(self.dtype)
        exchange = Exchange(
            counts, [len(tokens_N)] * size, self.group, is_far=self.is_far, traffic=self.traffic
        )
        parts_CBTD = exchange.start(part_MD)().view(size, *tokens_BT.shape, -1)
        return torch.cat(parts_CBTD.unbind(), dim=-1)

    def _all_tokens(self, tokens_N: Tensor, counts: list[int]) -> Tensor:
        """The tokens of all ranks [M], in order of the ranks."""
        if self.is_even:
            return all_parts(tokens_N, self.group).flatten()
        padded = tokens_N.new_zeros(max(counts))
        padded[: len(tokens_N)] = tokens_N
        every = all_parts(padded, self.group)
        return torch.cat([row[:count] for row, count in zip(every, counts, strict=True)])
