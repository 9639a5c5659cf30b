"""The conversion rule product_keys: memories added to a finished model, and other conversions of models with
memories.
"""

from typing import Any

import pytest
import torch

from atelier.engine.config.base import parse
from atelier.engine.config.conversion.depth import Depth
from atelier.engine.config.conversion.merge_experts import MergeExperts
from atelier.engine.config.conversion.product_keys import AddProductKeys
from atelier.engine.config.conversion.upcycle import Upcycle
from atelier.engine.config.conversion.width import Width
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.foreign.families import fitting
from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.conversion import depth, merge_experts, product_keys, upcycle
from tests.engine.test_convert import (
    SHAPES,
    apart,
    batch,
    converted,
    gradient,
    made_of,
    network,
    randomised,
    spec,
    weights_of,
)

SIZES: dict[str, Any] = {"keys": 6, "heads": 2, "per_token": 4, "width": 8}
KEYED = {"memory": ProductKeyMemory(blocks=(1,), **SIZES)}


@pytest.mark.parametrize("shape", [*SHAPES, {"num_experts": 4, "dropout": 0.1}])
@pytest.mark.parametrize("blocks", [(), (0, 1)])
def test_memories_without_value_rows_leave_logits_equal_to_the_bit(
    shape: dict[str, Any], blocks: tuple[int, ...]
) -> None:
    model = randomised(network(spec(**shape)))
    keyed = made_of(AddProductKeys(blocks=blocks, **SIZES), model, product_keys)
    assert keyed.spec.memory == ProductKeyMemory(blocks=blocks or (1,), **SIZES)
    assert apart(keyed, model) == 0.0


def test_values_of_a_new_memory_learn_at_once_and_its_keys_after_the_first_step() -> None:
    model = made_of(AddProductKeys(**SIZES), network(spec()), product_keys).train()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    norms = []
    for step in range(3):
        given = batch(seed=step)
        logits = model(given).hidden @ model.head_weight.T
        optim.zero_grad()
        torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), given["tokens_BT"][:, 1:].flatten()
        ).backward()
        names = ("values", "keys", "queries")
        norms.append([float(gradient(model, f"blocks.1.memory.{name}").norm()) for name in names])
        optim.step()
    assert norms[0][0] > 0 and norms[0][1:] == [0.0, 0.0]
    assert all(norm > 0 for later in norms[1:] for norm in later)


def test_the_seed_says_queries_and_keys() -> None:
    model = network(spec())
    found = [
        weights_of(converted(AddProductKeys(seed=seed, **SIZES), model, product_keys)) for seed in (1, 1, 2)
    ]
    for name in ("blocks.1.memory.queries", "blocks.1.memory.keys"):
        assert torch.equal(found[0][name], found[1][name])
        assert not torch.equal(found[0][name], found[2][name])


def test_a_deeper_model_keeps_its_memories() -> None:
    model = randomised(network(spec(**KEYED)))
    deep = made_of(Depth(num_layers=5), model, depth)
    assert deep.spec.memory.blocks == (3, 4) and apart(deep, model) < 1e-6


def test_upcycled_and_merged_models_keep_their_memories() -> None:
    model = randomised(network(spec(**KEYED)))
    sparse = made_of(Upcycle(num_experts=4), model, upcycle)
    assert sparse.spec.memory == model.spec.memory and apart(sparse, model) < 1e-5
    dense = made_of(MergeExperts(num_experts=0), sparse, merge_experts)
    assert dense.spec.memory == model.spec.memory and apart(dense, model) < 1e-5


@pytest.mark.parametrize(
    ("rule", "shape", "words"),
    [
        (AddProductKeys(), KEYED, r"convert: .* blocks \[1\] of the model have some already"),
        (AddProductKeys(blocks=(1, 2)), {}, "convert.blocks: has 2, but the model has blocks 0 to 1"),
        (AddProductKeys(blocks=(-1,)), {}, "convert.blocks: has -1"),
        (AddProductKeys(blocks=(0, 0)), {}, "blocks names a block twice"),
        (Width(), KEYED, "cannot widen product-key memories"),
    ],
)
def test_a_rule_that_does_not_fit_says_why(rule: ConversionSpec, shape: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rule.converted(spec(**shape))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"keys": 4, "per_token": 17}, r"per_token 17 is more than the keys \* keys = 16"),
        ({"width": 9}, "width 9 is odd"),
    ],
)
def test_sizes_of_a_memory_that_do_not_fit_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(AddProductKeys, fields, "convert")


def test_only_a_gpt_gets_memories() -> None:
    with pytest.raises(ConfigError, match="adds memories to a model of kind gpt, not ernie"):
        AddProductKeys().converted(Ernie(num_layers=2, hidden=32, num_heads=2))


def test_no_family_says_a_memory() -> None:
    """Exported, it would be another network."""
    assert list(fitting(spec()))
    assert not list(fitting(spec(**KEYED)))
