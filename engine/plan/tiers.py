"""What experts on disk cost a rank: bytes of each tier, what a step reads and writes, from how many tokens on
that is hidden behind computation. Torch-free. engine/tier/experts.py does it.

And the three inequalities of SE-MoE (2205.10034, section 2.1) by which a model fits into its tiers.
"""

from dataclasses import dataclass

from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.train import Train
from atelier.engine.plan.step_time import micro_batch

NUMBER = 4  # bytes; states and gradients are fp32
STATE, GRADIENT = 3, 1  # numbers of a weight: itself and two moments; its gradient


def state_bytes(spec: MixedBlocks, tensor: int) -> float:
    """An expert's weights, moments and gradients on one of so many tensor ranks."""
    params = (3 if spec.is_gated else 2) * spec.hidden * spec.expert_inner / tensor
    return (STATE + GRADIENT) * NUMBER * params


@dataclass(frozen=True, kw_only=True)
class TierCost:
    """Of the rank with most experts: bytes on disk, bytes of buffers, parameters of experts; bytes that a
    step reads and writes, and their seconds.
    """

    disk: float
    host: float
    params: float
    read: float
    written: float
    seconds: float

    def exposed(self, compute_s: float) -> float:
        """Seconds of a step that computing `compute_s` does not hide."""
        return max(0.0, self.seconds - compute_s)


def tier_cost(spec: ModelSpec, train: Train, parallel: Parallel, disk_gbps: float) -> TierCost | None:
    """None where no experts are on disk. A pass over all experts finds those that have a buffer and brings
    the others; each step has a pass forward and one back for every micro-batch, one for the norm of gradients
    and one for the optimiser.
    """
    if parallel.tiers.experts == "device" or not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return None
    axes = parallel.axes
    mixtures = -(-len(spec.mixtures) // parallel.pipeline)
    slots = mixtures * spec.num_experts // axes.expert
    params = state_bytes(spec, axes.tensor) / (STATE + GRADIENT) / NUMBER
    state, gradient = STATE * NUMBER * params, GRADIENT * NUMBER * params
    room = int(parallel.tiers.host_gb * 1e9 // (state + gradient)) if parallel.tiers.host_gb else slots
    size = min(room, slots)
    rows = micro_batch(train, parallel)
    num_micro = max(1, train.global_batch // axes.data // rows)
    tokens = rows * axes.expert * train.sequence  # that a rank's experts can meet in a micro-batch
    met = 1 - (1 - min(1.0, spec.experts_per_token / spec.num_experts)) ** tokens
    moved = (slots - size) * met  # in a pass
    read = moved * (2 * num_micro * state + state + (num_micro + 1) * gradient)
    written = moved * (state + num_micro * gradient)
    return TierCost(
        disk=slots * (state + gradient),
        host=size * (state + gradient),
        params=slots * params,
        read=read,
        written=written,
        seconds=(read + written) / (disk_gbps * 1e9),
    )


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Bytes that a model needs of each tier of all devices together (2205.10034, equations 1 to 3)."""

    device: float
    host: float
    disk: float

    def fits(self, devices: int, device: float, host: float, disk: float) -> bool:
        """Whether so many devices, with these bytes each, have room."""
        return self.device <= devices * device and self.host <= devices * host and self.disk <= devices * disk


def capacity(dense: float, sparse: float, mixtures: int, active: float) -> Capacity:
    """Of `dense` parameters and `sparse` ones in so many mixtures, of which a share `active` is used at once:
    on devices all states of dense ones and fp16 weights and gradients of one mixture's active ones; on hosts
    the states of active ones; on disks fp32 weights and moments of all.
    """
    return Capacity(
        device=16 * dense + 4 * active * sparse / mixtures, host=16 * active * sparse, disk=12 * sparse
    )
