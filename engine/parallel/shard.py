"""Sharding of weights, gradients and optimiser states: FSDP2 (ZeRO, 1910.02054), and HSDP with replicas."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from atelier.engine.parallel.compute import HALF, Precision
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
    policy = gathering_policy(precision, grid.gang.device)
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


def gathering_policy(precision: Precision, device: torch.device) -> MixedPrecisionPolicy:
    """Weights are gathered in 16 bits on a GPU; on a CPU autocast casts them, as without FSDP. Inputs keep
    their types: hidden states and rotary angles have 32 bits.
    """
    half = torch.bfloat16 if precision in HALF and device.type == "cuda" else None
    return MixedPrecisionPolicy(
        param_dtype=half, reduce_dtype=torch.float32 if half else None, cast_forward_inputs=False
    )


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
