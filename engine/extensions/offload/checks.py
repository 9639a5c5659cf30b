"""Check experts that are kept on disk. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.divisors import largest_divisor
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import LANES, Axes, Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.cost import state_bytes


def check(layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str) -> None:
    """Raise ConfigError for experts that cannot be kept on disk. `prefix`: the roles' place in the
    configuration.
    """
    tiers = Tiers.of(layout)
    for name, role in roles.items():
        if tiers is not None and tiers.experts == "disk":
            model = f"{prefix}{name}.model" if prefix and name else f"{prefix}model"
            _check_experts(layout, tiers, role, model, layout.axes_of(name))


def _check_experts(layout: Parallel, tiers: Tiers, role: Role, model: str, axes: Axes) -> None:
    """Check that each expert on disk belongs to one rank and is trained whole, by AdamW."""
    spec = role.model
    if not isinstance(spec, MixedBlocks) or not spec.num_experts:
        return
    if layout.expert_products == "grouped":
        raise ConfigError(
            "parallel.expert_products", "grouped, but the experts are on disk", "expert_products=loop"
        )
    shared = axes.replicate * axes.shard * axes.context
    if shared > 1:
        fits = largest_divisor(spec.num_experts, shared * axes.expert)
        raise ConfigError(
            "parallel.tiers.experts",
            f"disk, but {shared} ranks share each expert of {model} (replicate, shard and context)",
            f"use expert={fits} for the same ranks, so that each expert has one rank",
        )
    each = state_bytes(spec, axes.tensor)
    if tiers.host_gb and tiers.host_gb * 1e9 < each:
        raise ConfigError(
            "parallel.tiers.host_gb",
            f"{tiers.host_gb:g} GB cannot hold one expert state of {model} with its gradient",
            f"use host_gb={each / 1e9 * 1.001:.4g}",
        )
    if role.optim.kind != "adamw":
        raise ConfigError(
            "parallel.tiers.experts",
            f"disk, but {model} is trained by {role.optim.kind}, which does not support delayed steps",
            "optim=adamw",
        )
    if role.trainable.kind != "full":
        raise ConfigError(
            "parallel.tiers.experts", f"disk, but only parts of {model} are trained", "trainable=full"
        )
    inner, hidden = spec.expert_inner // axes.tensor, spec.hidden
    if inner * hidden % LANES:
        raise ConfigError(
            "parallel.tiers.experts",
            f"disk, but {model}.experts.ffn {inner} x hidden {hidden} is not a multiple of {LANES} numbers",
            f"use experts.ffn={-(-inner // LANES) * LANES}",
        )
