"""Every expert begins as the block's MLP (engine/config/conversion/copy_mlp.py): as weights of experts sum to
1, the model computes what it did, whatever its routers say.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from atelier.engine.config.base import Json
from atelier.engine.config.conversion.copy_mlp import CopyMLP
from atelier.engine.config.registry import ModelSpec
from atelier.engine.model.contract import Model
from atelier.engine.model.load import blank, build, first_values


def convert(
    rule: CopyMLP, model: Model, spec: ModelSpec, text: Iterable[Mapping[str, Tensor]]
) -> tuple[dict[str, Tensor], dict[str, Json]]:
    """The weights of the model that `spec` describes, and what the record says of them."""
    with blank():
        made = build(spec)
    mine = dict(model.named_parameters())
    found: dict[str, Tensor] = {}
    for name, shape in spec.shapes().items():
        if name in mine:
            found[name] = mine[name].detach()
            continue
        dense = mine.get(name.replace(".experts.", ".") + ".weight") if ".experts." in name else None
        if dense is not None:
            found[name] = dense.detach().expand(shape)
        else:  # a router
            values = first_values(made, name, torch.Size(shape), rule.seed, "copy_mlp")
            found[name] = values.to(next(iter(mine.values())).dtype)
    return found, {"copies": rule.num_experts}
