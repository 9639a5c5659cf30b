"""Check mixtures of experts before a process starts: routers against layouts and objectives, and kinds of
products. Torch-free.
"""

import math
from collections.abc import Mapping

from atelier.engine.config.divisors import divisors, largest_divisor
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Axes, Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.layout_checks import micro_batches


def check_axis(layout: Parallel, roles: Mapping[str, Role]) -> None:
    """Check that an expert axis is used only with experts."""
    has_experts = any(limit.axis == "expert" for role in roles.values() for limit in role.model.limits())
    if layout.expert > 1 and not has_experts:
        raise ConfigError(
            "parallel.expert",
            f"{layout.expert}, but no role's model has experts",
            f"shard={layout.axes.shard * layout.expert} uses the same ranks",
        )


def rows_together(layout: Parallel, models: Mapping[str, ModelSpec]) -> int:
    """The number of which a micro-batch's rows must be a multiple, so that rows that compete for experts stay
    together. `models` by role.
    """
    found = 1
    for name, spec in models.items():
        if isinstance(spec, MixedBlocks) and is_competing(spec):
            parts = max(1, layout.axes_of(name).data // layout.axes.data)
            found = math.lcm(found, spec.experts.group * parts)
    return found


def is_competing(spec: ModelSpec) -> bool:
    """Whether tokens of a model compete for experts."""
    return isinstance(spec, MixedBlocks) and bool(spec.num_experts) and spec.experts.router.competes


def check_length_of_rows(layout: Parallel, spec: ModelSpec, model: str, *, axes: Axes, place: str) -> None:
    """Check that a layout does not pad rows of labelled examples in which tokens compete: an expert has room
    for a share of a row's length.
    """
    if axes.row_unit == 1 or not isinstance(spec, MixedBlocks) or not is_competing(spec):
        return
    axis = "tensor" if axes.tensor > 1 else "context"
    size = axes.tensor * axes.context
    raise ConfigError(
        f"{place}.{axis}",
        f"{getattr(axes, axis)} pads rows of labelled examples, whose length is the room of {model}'s experts"
        f" (router.kind={spec.experts.router.kind})",
        f"{axis}=1, and shard={axes.shard * size} for the same ranks",
    )


def check_router(
    layout: Parallel, spec: ModelSpec, train: Train, model: str, *, axes: Axes, place: str
) -> None:
    """Check that tokens that compete for experts, or are balanced by rows, are on one rank. `axes` are the
    role's; `model` and `place` name its model and layout in messages.
    """
    if not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return
    router = spec.experts.router
    if router.needs_whole_rows and axes.context > 1:
        raise ConfigError(
            f"{place}.context",
            f"{axes.context} ranks split a row's tokens, but {model}.experts.router {router.kind} needs"
            " all of them on one",
            "context=1, or another router",
        )
    if not router.competes:
        return
    group, each = spec.experts.group, train.global_batch // axes.data
    rows = each if train.micro_batch == "auto" else train.micro_batch * layout.axes.data // axes.data
    if each % group or (train.micro_batch != "auto" and rows % group):
        fits = [size for size in divisors(each, each) if size % group == 0]
        raise ConfigError(
            f"{model}.experts.group",
            f"{group} rows compete for experts, but a rank's micro-batch has {rows}",
            f"train.micro_batch={min(fits, key=lambda size: abs(size - rows))} would fit"
            if fits
            else f"experts.group={largest_divisor(each, group)} would fit",
        )
    sizes = micro_batches(layout, train.global_batch)
    if train.micro_batch == "auto" and not any(size % group == 0 for size in sizes):
        raise ConfigError(
            f"{model}.experts.group",
            f"{group} rows compete for experts, but no micro-batch that holds them gives enough"
            f" micro-batches for pipeline={layout.pipeline} ({layout.schedule})",
            f"train.global_batch={layout.pipeline * group * layout.axes.data} would fit",
        )


def check_products(layout: Parallel, role: Role, train: Train, model: str, *, axes: Axes) -> None:
    """Check that a requested single product for all experts can be computed."""
    spec, place = role.model, "parallel.expert_products"
    if layout.expert_products != "grouped" or not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return
    if train.precision == "fp64":
        raise ConfigError(place, "grouped does not work with float64", "expert_products=loop")
    inner = spec.expert_inner // axes.tensor
    multiple = 4 if train.precision == "fp32" else 8
    for name, width in ((f"{model}.hidden", spec.hidden), (f"{model}.experts.ffn", inner)):
        if width % multiple:
            raise ConfigError(
                place, f"grouped, but {name} on a rank, {width}, is not a multiple of {multiple}", "loop"
            )


def check_sight(place: str, role: Role) -> None:
    """Check that experts for a causal objective's tokens do not depend on later tokens."""
    model = role.model
    if not isinstance(model, MixedBlocks) or not model.num_experts or not model.experts.router.looks_ahead:
        return
    causal = [
        key
        for key, spec in role.objective.items()
        if not type(spec).needs_teacher and "bidirectional_B" not in type(spec).extras
    ]
    if causal:
        raise ConfigError(
            f"{place}model.experts.router.kind",
            f"{model.experts.router.kind} chooses a token's experts also by later tokens, which objective"
            f" {causal[0]} must predict",
            "use router.kind=topk, or allow it with router.sees_future=true",
        )
