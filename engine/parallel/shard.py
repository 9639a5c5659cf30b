"""Sharding of weights, gradients and optimiser states: FSDP2 (ZeRO, 1910.02054), and HSDP with replicas."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from atelier.engine.parallel.compute import HALF, Precision, weight_dtype
from atelier.engine.parallel.embedding import ColumnEmbedding
from atelier.engine.parallel.expert import mixtures
from atelier.engine.parallel.grid import Grid


def shard(
    root: nn.Module,
    blocks: Iterable[nn.Module],
    *,
    grid: Grid,
    zero: int,
    precision: Precision,
    is_whole: bool = False,
) -> None:
    """Shard `root` in place, block by block, then the rest. `zero`: ZeRO stage 1 to 3; 3 frees a block's
    gathered weights after its forward.

    Gradients are plain sums over ranks, not means: scaling the objective by the global token count gives the
    exact global mean for any split. `is_whole`: trained weights stay whole on every rank and their gradients
    are not summed, because an extension takes each rank's.
    """
    mesh = grid.sharding("dense")
    if mesh is None:
        return
    policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # keep a block's rotary angles in fp32
    if precision in HALF and grid.gang.device.type == "cuda":  # on a CPU autocast casts, as without FSDP
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    is_freed = zero == 3
    alone = {weight for weight in root.parameters() if weight.requires_grad} if is_whole else set()
    for experts in mixtures(root) if grid.axes.expert > 1 else ():  # their tokens come from all expert ranks
        sparse = grid.sharding("sparse")
        if sparse is None:
            alone |= set(experts.parameters())
        else:
            fully_shard(experts, mesh=sparse, mp_policy=policy, reshard_after_forward=is_freed)
    for embedding in (module for module in root.modules() if isinstance(module, ColumnEmbedding)):
        if grid.axes.replicate > 1:
            fully_shard(
                embedding, mesh=grid.mesh_of("replicate"), mp_policy=policy, reshard_after_forward=is_freed
            )
        else:
            alone |= set(embedding.parameters())
    for block in blocks:
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=is_freed,
            ignored_params=alone & set(block.parameters()),
        )
    # the root has the head, which students read after its forward, so it stays gathered until the backward
    fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=alone)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo supports neither AVG nor PREMUL_SUM


def shared_dtype(precision: Precision, grid: Grid) -> torch.dtype:
    """The type of weights in blocks, and so of hidden states between stages."""
    is_half = precision in HALF and grid.gang.device.type == "cuda" and grid.sharding("dense") is not None
    return torch.bfloat16 if is_half else weight_dtype(precision)


def between_micro_batches(root: nn.Module, *, is_last: bool) -> None:
    """ZeRO-1: reduce gradients and free whole weights only after the last micro-batch."""
    if isinstance(root, FSDPModule):
        root.set_requires_gradient_sync(is_last)
        root.set_reshard_after_backward(is_last)


def reshard(root: nn.Module) -> None:
    """Free gathered weights after a forward without backward; the next forward gathers them again."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
