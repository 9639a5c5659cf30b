"""The cost of a training: parameters, FLOPs, memory of the fullest rank, time per step. Torch-free.

Memory is modelled in engine/plan/memory.py, time in engine/plan/step_time.py; FLOPs per token follow PaLM
(2204.02311, appendix B).
"""

from dataclasses import asdict, dataclass, replace
from typing import TypedDict, cast

from atelier.engine.config.device import Device
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.sections import extensions_of
from atelier.engine.config.train import Train
from atelier.engine.plan.cost_table import STACKS
from atelier.engine.plan.expert_checks import rows_together
from atelier.engine.plan.goodput import Faults, faults_of
from atelier.engine.plan.interconnect import Interconnect
from atelier.engine.plan.layout_checks import has_own_head, padded, ramp_shares
from atelier.engine.plan.memory import Memory, OffDevice, peak_memory
from atelier.engine.plan.model_shape import ModelShape, model_shape_of
from atelier.engine.plan.roofline import Machine
from atelier.engine.plan.step_time import Seconds, step_time

WIDTHS = {"bf16": 2, "fp8": 2, "fp32": 4, "fp64": 8}


class EstimateRow(TypedDict):
    """An estimate as plain JSON, with units in the names; FLOPs are those of all steps."""

    params: int
    flops: float
    memory_gb: float
    step_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    device_hours: float


@dataclass(frozen=True)
class Estimate:
    """`flops` (all steps) and `mfu` (share of the peak) count the model's needs; `hfu` adds recomputation.
    `seconds` per step and `memory` of the fullest rank are given by part.
    """

    params: int
    flops: float
    memory_gb: float
    step_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    device_hours: float
    seconds: Seconds
    memory: Memory
    faults: Faults

    def times(self, factor: float) -> "Estimate":
        """The same estimate with each step longer by this factor, as measured on a pool."""
        parts = {name: value * factor for name, value in asdict(self.seconds).items()}
        return replace(
            self,
            step_s=self.step_s * factor,
            tokens_per_s=self.tokens_per_s / factor,
            mfu=self.mfu / factor,
            hfu=self.hfu / factor,
            device_hours=self.device_hours * factor,
            seconds=Seconds(**parts),
        )

    def with_teacher(self, teacher: "Estimate") -> "Estimate":
        """The same estimate plus the forward passes of a frozen teacher, estimated over as many steps: a
        third of its computation, half of its communication, no optimiser.
        """
        share = {"optimiser": 0.0, "data": 1 / 3, "compute": 1 / 3, "bubble": 1 / 3}
        parts = {name: value * share.get(name, 1 / 2) for name, value in asdict(teacher.seconds).items()}
        seconds = Seconds(**{name: value + parts[name] for name, value in asdict(self.seconds).items()})
        ratio, more = seconds.total / self.step_s, sum(parts.values())
        return replace(
            self,
            flops=self.flops + teacher.flops / 3,
            step_s=seconds.total,
            tokens_per_s=self.tokens_per_s / ratio,
            mfu=self.mfu / ratio,
            hfu=self.hfu / ratio,
            device_hours=self.device_hours + teacher.device_hours * more / teacher.step_s,
            seconds=seconds,
        )

    def row(self) -> EstimateRow:
        """The estimate as plain JSON, without its parts."""
        return {
            "params": self.params,
            "flops": round(self.flops, 6),
            "memory_gb": round(self.memory_gb, 6),
            "step_s": round(self.step_s, 6),
            "tokens_per_s": round(self.tokens_per_s, 6),
            "mfu": round(self.mfu, 6),
            "hfu": round(self.hfu, 6),
            "device_hours": round(self.device_hours, 6),
        }

    def parts(self) -> dict[str, dict[str, float]]:
        """Seconds per step and GB of the fullest rank, by part."""
        return {
            "seconds": {key: round(value, 6) for key, value in asdict(self.seconds).items()},
            "memory_gb": {key: round(value / 1e9, 6) for key, value in asdict(self.memory).items()},
        }


def machine_of(pool: Pool, device: Device, parallel: Parallel, precision: str) -> Machine:
    """The machine of one rank: a device, or the cores of its threads."""
    threads = 1 if parallel.threads == "auto" else parallel.threads
    cores = 1.0
    if pool.is_cpu:
        cores = threads * (device.crowded if parallel.ranks * threads > 1 else 1.0)
        cores *= device.threaded if threads > 1 else 1.0
    width = WIDTHS[precision] if pool.half else max(4, WIDTHS[precision])
    return Machine(
        flops=device.peak_tflops * 1e12 * device.matmul * cores,
        bandwidth=device.memory_gbps * 1e9 * cores,
        launch_s=device.launch_us * 1e-6,
        costs=STACKS[device.stack],
        width=width,
        reads_ends=device.reads_ends,
    )


@dataclass(frozen=True)
class Setting:
    """The values that all layouts of one training share."""

    role: Role
    model_shape: ModelShape
    pool: Pool
    device: Device

    @staticmethod
    def of(role: Role, train: Train, pool: Pool, vocab: int) -> "Setting":
        model = role.model
        if model.vocab == "auto":
            model = model.resolved(vocab)
        return Setting(role, model_shape_of(model, train.sequence), pool, pool.device)

    def estimate(self, train: Train, parallel: Parallel, *, steps: int, pads: bool = False) -> Estimate:
        """The cost of `steps` steps in this layout, on this site. `pads`: rows of padding, which take time
        and memory, fill a batch that the layout does not divide.
        """
        train = train.here()
        together = rows_together(parallel, {"": self.role.model})
        computed = padded(parallel, train, together=together) if pads else train
        model_shape, device = self.model_shape, self.device
        if not has_own_head(self.role.model):
            parallel = parallel.model_copy(update={"embedding": "gathered"})
        machine = machine_of(self.pool, device, parallel, train.arithmetic)
        interconnect = Interconnect(
            node=device.node_gbps * 1e9,
            network=device.network_gbps * 1e9,
            per_node=device.per_node,
            latency=device.latency_us * 1e-6,
        )
        seconds = step_time(model_shape, self.role.optim.kind, computed, parallel, machine, interconnect)
        tier = off_device(self.role.model, train, parallel, device, is_cpu=self.pool.is_cpu)
        if tier is not None:
            seconds = replace(seconds, disk=tier.exposed(seconds.total))
        memory = peak_memory(model_shape, computed, parallel, machine, tier)
        tokens = train.global_batch * train.sequence
        samples_share, rows_share = ramp_shares(parallel, train)
        again = recomputed_flops(model_shape, parallel, is_fused=machine.costs.is_fused)
        step_s = seconds.total
        mfu = model_shape.flops_per_token * tokens / step_s / parallel.ranks / (machine.flops / device.matmul)
        return Estimate(
            params=model_shape.params,
            flops=model_shape.flops_per_token * tokens * steps * samples_share,
            memory_gb=memory.total / 1e9,
            step_s=step_s,
            tokens_per_s=tokens / step_s,
            mfu=mfu,
            hfu=mfu * (1 + again / model_shape.flops_per_token),
            device_hours=step_s * steps * rows_share * parallel.ranks / 3600,
            seconds=seconds,
            memory=memory,
            faults=faults_of(device, parallel.ranks, memory.states),
        )


def off_device(
    spec: ModelSpec, train: Train, parallel: Parallel, device: Device, *, is_cpu: bool
) -> OffDevice | None:
    """The cost of a role's weights that an extension keeps off the device; None if all are on it."""
    for name in sorted(extensions_of(parallel)):
        find = getattr(extension_part(name, "cost"), "off_device", None)
        if find is not None and (found := find(spec, train, parallel, device, is_cpu=is_cpu)) is not None:
            return cast(OffDevice, found)
    return None


def estimate(
    role: Role,
    train: Train,
    parallel: Parallel,
    pool: Pool,
    vocab: int,
    steps: int | None = None,
    *,
    pads: bool = False,
) -> Estimate:
    """The cost of training one role for `steps` steps (default: all from its start) on `parallel.ranks`
    devices of `pool`. `pads` as in `Setting.estimate`.
    """
    steps = role.last(train.num_steps) - int(role.start) if steps is None else steps
    return Setting.of(role, train, pool, vocab).estimate(train, parallel, steps=steps, pads=pads)


def recomputed_flops(model_shape: ModelShape, parallel: Parallel, *, is_fused: bool) -> float:
    """FLOPs per token that the backward pass recomputes. Selective recomputation counts attention as in
    2205.05198, equation 9: scores and sums of values a second time.
    """
    if parallel.recompute == "none":
        return 0.0
    if parallel.recompute == "full":
        return sum(model_shape.flops) / 3 / parallel.recompute_every
    return 0.0 if is_fused else model_shape.attention_flops / parallel.recompute_every
