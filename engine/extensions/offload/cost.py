"""What experts on disk cost a rank: bytes of each tier, what a step reads and writes, from how many tokens on
that is hidden behind computation. Torch-free. experts.py does it.

And the three inequalities of SE-MoE (2205.10034, section 2.1) by which a model fits into its tiers.
"""

from dataclasses import dataclass
from typing import NamedTuple

from atelier.engine.config.device import Device
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.train import Train
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.plan.memory import OffDevice
from atelier.engine.plan.step_time import micro_batch

NUMBER = 4  # bytes; all of an expert's state is fp32
MOMENTS = 2
PARTS = 2 + MOMENTS  # numbers of a weight: itself, its gradient, its moments
AHEAD = 2  # experts that are read while one computes


def state_bytes(spec: MixedBlocks, tensor: int) -> float:
    """An expert's weights, moments and gradients on one of so many tensor ranks."""
    params = (3 if spec.is_gated else 2) * spec.hidden * spec.expert_inner / tensor
    return PARTS * NUMBER * params


class Rooms(NamedTuple):
    """Buffers in memory of experts' weights, gradients and moments, each."""

    weights: int
    gradients: int
    moments: int

    @property
    def units(self) -> int:
        """How many times an expert's weights they take."""
        return self.weights + self.gradients + MOMENTS * self.moments


def rooms_for(units: int, slots: int) -> Rooms | None:
    """Divide memory for `units` times an expert's weights among what `slots` experts need: a few of each
    kind, then weights, which a step reads twice and writes once, then gradients, then moments. None without
    room for one of each.
    """
    few = min(AHEAD + 1, slots, units // PARTS)
    if few < 1:
        return None
    left = units - PARTS * few
    weights = min(left, slots - few)
    gradients = min(left - weights, slots - few)
    moments = min((left - weights - gradients) // MOMENTS, slots - few)
    return Rooms(few + weights, few + gradients, few + moments)


@dataclass(frozen=True, kw_only=True)
class TierCost(OffDevice):
    """Of the rank with most experts: bytes on disk; bytes that a step reads and writes, and their seconds.
    `host`: of buffers.
    """

    disk: float
    read: float
    written: float
    seconds: float
    first_s: float  # of these, in the first forward pass, in which experts take the optimiser's last step
    first: float  # share of a step's computing that is this pass

    def exposed(self, compute_s: float) -> float:
        rest = self.seconds - self.first_s - (1 - self.first) * compute_s
        return max(0.0, self.first_s - self.first * compute_s) + max(0.0, rest)


def off_device(spec: ModelSpec, train: Train, parallel: Parallel, device: Device) -> TierCost | None:
    """None where no experts are on disk. A pass over all experts finds those that have a buffer and brings
    the others: weights forward and back for every micro-batch; gradients to be added to and for the
    optimiser's step; moments for that.
    """
    tiers = Tiers.of(parallel)
    if tiers is None or tiers.experts == "device":
        return None
    if not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return None
    axes = parallel.axes
    mixtures = -(-len(spec.mixtures) // parallel.pipeline)
    slots = mixtures * spec.num_experts // axes.expert
    each = state_bytes(spec, axes.tensor) / PARTS  # bytes of an expert's weights
    room = int(tiers.host_gb * 1e9 // each) if tiers.host_gb else PARTS * slots
    rooms = rooms_for(room, slots) or Rooms(0, 0, 0)  # refused elsewhere
    rows = micro_batch(train, parallel)
    num_micro = max(1, train.global_batch // axes.data // rows)
    tokens = rows * axes.expert * train.sequence  # that a rank's experts can meet in a micro-batch
    met = 1 - (1 - min(1.0, spec.experts_per_token / spec.num_experts)) ** tokens
    weights, gradients, moments = (met * (slots - size) * each for size in rooms)  # of a pass
    speed = device.disk_gbps * 1e9
    read = 2 * num_micro * weights + num_micro * gradients + MOMENTS * moments
    written = weights + num_micro * gradients + MOMENTS * moments
    return TierCost(
        disk=PARTS * slots * each,
        host=rooms.units * each,
        params=slots * each / NUMBER,
        read=read,
        written=written,
        seconds=(read + written) / speed,
        first_s=(2 * weights + gradients + 2 * MOMENTS * moments) / speed,
        first=1 / (3 * num_micro),
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
