"""Search all layouts of a number of devices; order them by speed, with a reason for each rejected one.
Torch-free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from atelier.engine.config.divisors import divisors
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel, Recompute
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.sections import keys_with
from atelier.engine.config.train import Train
from atelier.engine.plan.checks import check_layout
from atelier.engine.plan.estimate import Estimate, Setting
from atelier.engine.plan.expert_checks import rows_together
from atelier.engine.plan.layout_checks import padded
from atelier.engine.plan.step_time import micro_batch

MICRO = (1, 2, 4, 8, 16)
INTERLEAVED = (2, 3, 4, 5, 6, 7, 8)
LONG = 8192  # the axis context is tried for rows from this length on
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class LayoutOption:
    """A possible layout, with its fastest micro-batch."""

    parallel: Parallel
    micro_batch: int
    estimate: Estimate

    @property
    def mesh(self) -> str:
        return mesh(self.parallel)


@dataclass(frozen=True)
class RejectedLayout:
    """A mesh that cannot be used, and the reason."""

    mesh: str
    why: str


def mesh(parallel: Parallel) -> str:
    """The axes above 1 as command-line words, outermost first."""
    names = ("pipeline", "replicate", "shard", "expert", "context", "tensor")
    sizes = {name: getattr(parallel, name) for name in names}
    return " ".join(f"{name}={size}" for name, size in sizes.items() if size != 1) or "shard=1"


def search(
    role: Role,
    train: Train,
    pool: Pool,
    devices: int,
    *,
    vocab: int = 0,
    like: Parallel | None = None,
    recompute: Sequence[Recompute] = RECOMPUTE,
    pads: bool = False,
) -> tuple[list[LayoutOption], list[RejectedLayout]]:
    """All meshes of `devices` ranks that can train the role, fastest first, each with its best micro-batch,
    schedule and recomputation; and the meshes that cannot. Threads, compilation and device are taken from
    `like`. `pads`: rows of padding fill a batch that a mesh does not divide.
    """
    train = train.here()
    setting = Setting.of(role, train, pool, vocab)
    limit = pool.device.memory_gb
    found: list[LayoutOption] = []
    out: list[RejectedLayout] = []
    for base in meshes(role, train, pool, devices, like or Parallel(shard=1, threads=1)):
        try:
            check_layout(base, {"model": role}, train, prefix="", pads=pads)
        except ConfigError as error:
            out.append(RejectedLayout(mesh(base), f"{error.place} {error.problem}"))
            continue
        best = _best(base, _computed(base, role, train) if pads else train, setting, recompute)
        if best.estimate.memory_gb <= limit:
            found.append(best)
        else:
            out.append(
                RejectedLayout(
                    mesh(base), f"needs {best.estimate.memory_gb:.0f} GB per device, which has {limit:g}"
                )
            )
    return sorted(found, key=lambda option: option.estimate.step_s), out


def _computed(base: Parallel, role: Role, train: Train) -> Train:
    """The training with its batch padded, and an `auto` micro-batch resolved."""
    now = padded(base, train, together=rows_together(base, {"model": role.model}))
    return now.model_copy(update={"micro_batch": micro_batch(now, base)})


def fastest(
    role: Role,
    train: Train,
    pool: Pool,
    mesh: Parallel,
    *,
    vocab: int = 0,
    recompute: Sequence[Recompute] = RECOMPUTE,
) -> LayoutOption:
    """The best micro-batch, schedule and recomputation for a mesh; if none fits, those with the least
    memory.
    """
    train = train.here()
    return _best(mesh, train, Setting.of(role, train, pool, vocab), recompute)


def _best(base: Parallel, train: Train, setting: Setting, recompute: Sequence[Recompute]) -> LayoutOption:
    limit = setting.device.memory_gb
    tried = list(_variants(base, train, setting, recompute))
    fitting = [option for option in tried if option.estimate.memory_gb <= limit]
    if not fitting:
        return min(tried, key=lambda one: one.estimate.memory_gb)
    return min(fitting, key=lambda one: (one.estimate.step_s, one.estimate.memory_gb))


def meshes(role: Role, train: Train, pool: Pool, devices: int, like: Parallel) -> Iterator[Parallel]:
    """All products of axes that give `devices`: tensor inside a node, context for long rows, expert for
    models with experts, the rest data parallel (replicated, sharded, or sharded inside a node).
    """
    per_node = pool.device.per_node
    experts = next((limit.number for limit in role.model.limits() if limit.axis == "expert"), 1)
    for tensor in _divisors(devices, min(per_node, 64)):
        for pipeline in _divisors(devices // tensor, role.model.num_blocks):
            rest = devices // tensor // pipeline
            for context in _divisors(rest, train.sequence // (LONG // 2) if train.sequence >= LONG else 1):
                for expert in _divisors(rest // context, experts):
                    data = rest // context // expert
                    inside = max(1, per_node // tensor)
                    for shard in sorted({1, data, inside if data % inside == 0 else 1}):
                        axes = {
                            "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert,
                            "shard": shard, "replicate": data // shard,
                        }  # fmt: skip
                        plain = {"schedule": "1f1b", "stages": (), "roles": {}}
                        of_ranks = dict.fromkeys(keys_with(like, "names_ranks"))
                        yield like.model_copy(update=axes | plain | of_ranks)


def _variants(
    base: Parallel, train: Train, setting: Setting, recompute: Sequence[Recompute]
) -> Iterator[LayoutOption]:
    each = train.global_batch // base.axes.data
    chosen = MICRO if train.micro_batch == "auto" else (train.micro_batch,)
    for micro in chosen:
        if each % micro or each // micro < base.pipeline:
            continue
        now = train.model_copy(update={"micro_batch": micro})
        for parallel in _schedules(base, each // micro, setting.model_shape.num_layers):
            for again in recompute:
                one = parallel.model_copy(update={"recompute": again})
                yield LayoutOption(one, micro, setting.estimate(now, one, steps=1))


def _schedules(base: Parallel, num_micro: int, num_layers: int) -> Iterator[Parallel]:
    yield base
    if base.pipeline == 1 or num_micro % base.pipeline:
        return
    for stages in INTERLEAVED:
        if base.pipeline * stages <= num_layers and num_layers % (base.pipeline * stages) == 0:
            yield base.model_copy(update={"schedule": "interleaved", "interleave": stages})


def _divisors(number: int, most: int) -> list[int]:
    return divisors(number, max(1, most))
