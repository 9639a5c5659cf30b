"""Merge low-rank additions into their base (engine/config/conversion/merge_adapter.py)."""

from functools import partial

from atelier.engine.config.conversion.merge_adapter import MergeAdapter
from atelier.engine.config.foreign.adapters import CONFIG, WEIGHTS, scaled
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion.contract import Converted, Parent, WeightPiece
from atelier.engine.model.lora import of_base, with_addition
from atelier.engine.model.weights import StoredWeights


def convert(rule: MergeAdapter, parent: Parent, made: ModelSpec) -> Converted:
    """The base with its additions, each added in float32 or more. Raises ConfigError for an adapter that is
    not plain LoRA, DataError if its matrices are not the base's.
    """
    source = parent.others["adapter"]
    place = f"{source.url}/{CONFIG}"
    how = scaled(source.json(CONFIG, parent.scratch), place)
    stored = StoredWeights(source.file(WEIGHTS, parent.scratch))
    _, additions = of_base(stored, parent.spec, how, f"{source.url}/{WEIGHTS}")
    found = Converted()
    for name, shape in made.shapes().items():
        if name not in additions:
            found.keep(name, parent)
            continue
        make = partial(lambda name: with_addition(parent.weights[name], *additions[name]), name)
        piece = WeightPiece(name, 1.0, "low-rank addition merged")
        found.add(name, shape, parent.weights[name].dtype, make, piece)
    found.about = {"adapter": rule.adapter, "rank": how.rank, "matrices": len(additions), "is_exact": False}
    return found
