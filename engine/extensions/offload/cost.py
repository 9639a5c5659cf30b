"""The cost of experts on disk (experts.py) for a rank: bytes per tier, bytes that a step reads and writes,
and the number of tokens that hides this behind computation. Torch-free.

Also the three inequalities of SE-MoE (2205.10034, section 2.1) for fitting a model into tiers.
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

NUMBER = 4  # bytes; an expert's state is fp32
MOMENTS = 2
PARTS = 2 + MOMENTS  # numbers per weight: itself, its gradient, its moments
AHEAD = 2  # experts read while one computes
WORKING = 2  # weights of experts on a GPU besides buffers: a pass's gradient, a gradient of 0


def state_bytes(spec: MixedBlocks, tensor: int) -> float:
    """Bytes of an expert's weights, moments and gradients on one of `tensor` ranks."""
    params = (3 if spec.is_gated else 2) * spec.hidden * spec.expert_inner / tensor
    return PARTS * NUMBER * params


class Rooms(NamedTuple):
    """Numbers of buffers in memory for experts' weights, gradients and moments."""

    weights: int
    gradients: int
    moments: int

    @property
    def units(self) -> int:
        """Their memory as a multiple of an expert's weights."""
        return self.weights + self.gradients + MOMENTS * self.moments


def rooms_for(units: int, slots: int) -> Rooms | None:
    """Divide memory for `units` times an expert's weights among the needs of `slots` experts: a few of each
    kind, then weights (read twice and written once per step), then gradients, then moments. None if there is
    no room for one of each.
    """
    few = min(AHEAD + 1, slots, units // PARTS)
    if few < 1:
        return None
    left = units - PARTS * few
    weights = min(left, slots - few)
    gradients = min(left - weights, slots - few)
    moments = min((left - weights - gradients) // MOMENTS, slots - few)
    return Rooms(few + weights, few + gradients, few + moments)


def rooms_on_device(units: int, slots: int) -> Rooms:
    """Buffers on a device for `slots` experts, with memory for `units` times an expert's weights: a few of
    each kind in any case, then weights. Gradients and moments pass through.
    """
    few = min(AHEAD + 1, slots)
    return Rooms(min(slots, few + max(0, units - PARTS * few)), few, few)


@dataclass(frozen=True, kw_only=True)
class TransferTime:
    """Seconds of a step in which data move. `first_s`: of these in the first forward pass, which includes the
    last optimiser step.
    """

    seconds: float
    first_s: float


@dataclass(frozen=True, kw_only=True)
class TierCost(OffDevice):
    """For the rank with most experts: bytes on disk and in host memory, and bytes that a step moves between
    these (`read`, `written`) and between host memory and a GPU (`copied`, `copied_back`; 0 on CPUs), with
    their seconds.
    """

    disk: float
    host: float
    read: float
    written: float
    copied: float
    copied_back: float
    by_disk: TransferTime
    by_link: TransferTime
    first: float  # the first forward pass's share of a step's computing

    @property
    def is_on_gpu(self) -> bool:
        return self.copied_back > 0

    def exposed(self, compute_s: float) -> float:
        """The disk, the link to the device and computing all work at once."""
        first = max(self.by_disk.first_s, self.by_link.first_s)
        rest = max(each.seconds - each.first_s for each in (self.by_disk, self.by_link))
        return max(0.0, first - self.first * compute_s) + max(0.0, rest - (1 - self.first) * compute_s)


def off_device(
    spec: ModelSpec, train: Train, parallel: Parallel, device: Device, *, is_cpu: bool = True
) -> TierCost | None:
    """The cost of a role's experts on disk; None if there are none. A pass over all experts finds some in
    buffers and loads the others: weights forward and back per micro-batch, gradients for adding and for the
    optimiser's step, moments for that step. On GPUs the same passes copy what has no buffer there.
    """
    tiers = Tiers.of(parallel)
    if tiers is None or tiers.experts == "device":
        return None
    if not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return None
    on_gpu = parallel.device == "cuda" or (parallel.device == "auto" and not is_cpu)
    axes = parallel.axes
    mixtures = -(-len(spec.mixtures) // parallel.pipeline)
    slots = mixtures * spec.num_experts // axes.expert
    each = state_bytes(spec, axes.tensor) / PARTS  # bytes of an expert's weights
    room = int(tiers.host_gb * 1e9 // each) if tiers.host_gb else PARTS * slots
    rooms = rooms_for(room, slots) or Rooms(0, 0, 0)  # checked elsewhere
    near = rooms_on_device(int(tiers.device_gb * 1e9 // each), slots)
    rows = micro_batch(train, parallel)
    num_micro = max(1, train.global_batch // axes.data // rows)
    tokens = rows * axes.expert * train.sequence  # tokens for a rank's experts per micro-batch
    met = share_met(spec, tokens)
    weights, gradients, moments = (met * (slots - size) * each for size in rooms)  # bytes per pass
    read = 2 * num_micro * weights + num_micro * gradients + MOMENTS * moments
    written = weights + num_micro * gradients + MOMENTS * moments
    disk = device.disk_gbps * 1e9
    all_met = met * slots * each if on_gpu else 0.0
    missed = met * (slots - near.weights) * each if on_gpu else 0.0  # weights without a buffer on the device
    copied = 2 * num_micro * missed + (num_micro + MOMENTS) * all_met
    back = (1 + num_micro + MOMENTS) * all_met
    link = device.host_gbps * 1e9  # in each direction
    first_in, first_back = missed + (1 + MOMENTS) * all_met, (1 + MOMENTS) * all_met
    return TierCost(
        held=(near.units + WORKING) * each if on_gpu else rooms.units * each,
        params=slots * each / NUMBER,
        disk=PARTS * slots * each,
        host=rooms.units * each,
        read=read,
        written=written,
        copied=copied,
        copied_back=back,
        by_disk=TransferTime(
            seconds=(read + written) / disk,
            first_s=(2 * weights + gradients + 2 * MOMENTS * moments) / disk,
        ),
        by_link=TransferTime(seconds=max(copied, back) / link, first_s=max(first_in, first_back) / link),
        first=1 / (3 * num_micro),
    )


def share_met(spec: MixedBlocks, tokens: int) -> float:
    """The share of a mixture's experts that so many tokens use, if all are equally likely."""
    return 1 - (1 - min(1.0, spec.experts_per_token / spec.num_experts)) ** tokens


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Bytes that a model needs in each tier of all devices together (2205.10034, equations 1 to 3)."""

    device: float
    host: float
    disk: float

    def fits(self, devices: int, device: float, host: float, disk: float) -> bool:
        """Whether `devices` devices, with these bytes each, have room."""
        return self.device <= devices * device and self.host <= devices * host and self.disk <= devices * disk


def capacity(dense: float, sparse: float, mixtures: int, active: float) -> Capacity:
    """For `dense` parameters and `sparse` ones in `mixtures`, with a share `active` used at once: on devices
    all dense states, and fp16 weights and gradients of one mixture's active ones; on hosts states of active
    ones; on disks all fp32 weights and moments.
    """
    return Capacity(
        device=16 * dense + 4 * active * sparse / mixtures, host=16 * active * sparse, disk=12 * sparse
    )


def capacity_of(spec: MixedBlocks, params: float, active: float) -> Capacity:
    """Of a model with `params` parameters in all."""
    each = (3 if spec.is_gated else 2) * spec.hidden * spec.expert_inner
    sparse = len(spec.mixtures) * spec.num_experts * each
    return capacity(params - sparse, sparse, len(spec.mixtures), active)
