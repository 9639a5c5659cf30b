"""Make experts from blocks' MLPs (engine/config/conversion/upcycle.py). The model's function stays the same:
weights of a token's experts sum to 1 for any router.

If an MLP is cut into P parts, experts g P .. g P + P - 1 are the parts of group g, with equal router rows: a
token meets all parts of its groups, each weighted by 1/P of the group's weight, so `down` is multiplied by P.

X experts, P parts, D hidden
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from atelier.engine.config.conversion.upcycle import Upcycle
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.seed import seed_of
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece, copied, new
from atelier.engine.model.load import blank, build, first_values

GAIN = 0.01  # scale of orthogonal rows


def convert(rule: Upcycle, parent: Parent, made: ModelSpec) -> Converted:
    """The model with experts."""
    with blank():
        network = build(made)
    found, dtype = Converted(), next(iter(parent.weights.values())).dtype
    for name, shape in made.shapes().items():
        dense = name.replace(".experts.", ".") + ".weight"
        if name in parent.weights:
            found.keep(name, parent)
        elif ".experts." in name:
            how = "copied" if rule.finer == 1 else "parts copied"
            found.add(
                name,
                shape,
                dtype,
                partial(_experts, rule, parent, dense, is_down=name.endswith("down")),
                WeightPiece(dense, 1.0, how) if rule.finer > 1 else copied(dense),
            )
        else:
            first = partial(first_values, network, name, torch.Size(shape), rule.seed, rule.kind)
            make = partial(_router, rule, shape, name) if name.endswith("router.weight") else first
            found.add(name, shape, dtype, partial(_as, dtype, make), new("router"))
    is_wide = dtype.itemsize >= 4  # with narrower logits groups tie and a token may get parts of two
    found.about = {"copies": rule.num_experts // rule.finer, "is_exact": rule.finer == 1 or is_wide}
    return found


def _as(dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
    return make().to(dtype)


def _experts(rule: Upcycle, parent: Parent, source: str, *, is_down: bool) -> Tensor:
    """[X, ...]: the MLP's matrix for every expert, or its parts in turn."""
    dense = parent.weights[source]
    if rule.finer == 1:
        return dense.expand(rule.num_experts, *dense.shape)
    parts = torch.stack(dense.chunk(rule.finer, dim=1 if is_down else 0))
    parts = parts * rule.finer if is_down else parts
    return parts.repeat(rule.num_experts // rule.finer, 1, 1)


def _router(rule: Upcycle, shape: tuple[int, ...], name: str) -> Tensor:
    """[X, D] rows: orthogonal or normal; equal for the parts of a group."""
    generator = torch.Generator().manual_seed(seed_of(rule.seed, rule.kind, name))
    groups, width = shape[0] // rule.finer, shape[1]
    drawn = torch.empty(groups, width).normal_(0.0, 0.02, generator=generator)
    if rule.router == "orthogonal":
        found, _ = torch.linalg.qr(drawn.T.double(), mode="reduced")
        drawn = torch.nn.functional.pad(found.T * GAIN, (0, 0, 0, max(0, groups - found.shape[1]))).float()
    return drawn.repeat_interleave(rule.finer, 0)
