"""MoEfication: all experts together equal the dense model, related neurons form one expert, and routers find
the important experts.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from atelier.engine.config.blocks import MLPS, MLPKind
from atelier.engine.config.conversion.moefy import Moefy
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.registry import ModelSpec
from atelier.engine.conversion import moefy
from atelier.engine.conversion.contract import Parent
from atelier.engine.model.contract import Model, stored
from tests.engine.test_convert import (
    VOCAB,
    apart,
    batch,
    converted,
    made_of,
    network,
    randomised,
    spec,
    weights_of,
)

BY = ("weights", "coactivation", "random")
TEXT = [batch(seed=seed) for seed in range(8)]
GROUPS, EACH = 8, 12  # of neurons that are active together


@pytest.mark.parametrize("mlp", MLPS)
def test_all_experts_of_a_token_compute_what_the_mlp_did(mlp: MLPKind) -> None:
    model = randomised(network(spec(mlp=mlp, ffn=64)))
    for by in BY:
        sparse = made_of(Moefy(num_experts=8, experts_per_token=8, by=by), model, moefy)
        assert sparse.spec.expert_inner == 8 and apart(sparse, model) < 1e-5
    some = made_of(Moefy(num_experts=8, experts_per_token=2), model, moefy)
    assert apart(some, model) > 1e-3


def sides() -> dict[str, Tensor]:
    """A row of an encoder's input, and what its decoder reads."""
    text, other = batch(seed=9), batch(seed=10)
    return text | {f"encoder_{name.replace('BT', 'BU')}": values[:, 1:] for name, values in other.items()}


@pytest.mark.parametrize(
    "shape",
    [
        EncDec(num_layers=2, encoder_layers=1, hidden=32, num_heads=2, ffn=64, vocab=VOCAB),
        EncDec(num_layers=1, hidden=32, num_heads=2, ffn=64, vocab=VOCAB, mlp="relu", tied=True),
        Ernie(num_layers=2, hidden=32, num_heads=2, ffn=64, vocab=VOCAB, mlp="relu2", nlu=Net(num_layers=1)),
    ],
    ids=lambda shape: f"{shape.kind}-{shape.mlp}",
)
def test_models_of_other_kinds_are_divided_too(shape: EncDec | Ernie) -> None:
    """In an encoder and a decoder, of which each half of a row is the text; of ernie the universal blocks."""
    model = network(shape)
    weights = {name: weight.detach() for name, weight in stored(model)}
    rules = [Moefy(num_experts=4, experts_per_token=number) for number in (4, 2)]
    whole, some = (
        moefy.convert(rule, Parent(weights, shape, lambda: model, TEXT), rule.converted(shape))
        for rule in rules
    )
    sparse = network(rules[0].converted(shape), weights_of(whole))
    given = batch(seed=9) if isinstance(shape, Ernie) else sides()
    with torch.inference_mode():
        found = [each(given).hidden @ each.head_weight.T for each in (sparse, model)]
    assert float((found[0] - found[1]).abs().max() / found[1].std()) < 1e-5
    held: Any = some.about["held"]
    assert len(held) == (shape.num_blocks if isinstance(shape, EncDec) else shape.num_layers)
    assert all(0.5 < each["chosen"] <= each["best"] <= 1 for each in held.values())


def grouped() -> tuple[Model, Tensor]:
    """A model of which neurons of a group read nearly the same, in an order that says nothing of it; and the
    group of each.
    """
    model = network(spec(mlp="relu", ffn=GROUPS * EACH))
    generator = torch.Generator().manual_seed(3)
    group_F = torch.arange(GROUPS).repeat_interleave(EACH)[torch.randperm(GROUPS * EACH, generator=generator)]
    with torch.no_grad():
        for block in model.blocks:
            means_GD = torch.randn(GROUPS, 32, generator=generator)
            noise_FD = 0.05 * torch.randn(GROUPS * EACH, 32, generator=generator)
            block.mlp.up.weight.copy_(means_GD[group_F] + noise_FD)
    return model, group_F


@pytest.mark.parametrize("by", ["weights", "coactivation"])
def test_neurons_that_belong_together_are_one_expert(by: Any) -> None:
    model, group_F = grouped()
    found = weights_of(converted(Moefy(num_experts=GROUPS, by=by), model, moefy, TEXT))
    for number in range(2):
        rows_FD = dict(stored(model))[f"blocks.{number}.mlp.up.weight"]
        for expert_ED in found[f"blocks.{number}.mlp.experts.up"]:
            places = [int((rows_FD == row).all(1).nonzero()) for row in expert_ED]
            assert len({int(group_F[place]) for place in places}) == 1
        every = found[f"blocks.{number}.mlp.experts.up"].flatten(0, 1)
        assert sorted(every[:, 0].tolist()) == sorted(rows_FD[:, 0].tolist())  # each neuron once


def test_any_neurons_are_the_seed_s_and_belong_to_no_group() -> None:
    model, _ = grouped()
    rules = [Moefy(num_experts=GROUPS, by="random", seed=seed) for seed in (1, 1, 2)]
    one, same, other = (weights_of(converted(rule, model, moefy, TEXT)) for rule in rules)
    name = "blocks.0.mlp.experts.up"
    assert torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name])


def test_routers_choose_experts_that_hold_most_of_the_activations() -> None:
    model, _ = grouped()
    rule = Moefy(num_experts=GROUPS, experts_per_token=2)
    held: Any = converted(rule, model, moefy, TEXT).about["held"]
    for each in held.values():
        assert each["best"] > 0.5 and each["chosen"] > 0.9 * each["best"]
    learned = made_of(rule, model, moefy)
    anyhow = network(learned.spec, {name: weight.detach() for name, weight in stored(learned)})
    with torch.no_grad():
        for block in anyhow.blocks:
            block.mlp.router.weight.normal_(generator=torch.Generator().manual_seed(5))
    assert apart(learned, model) < 0.8 * apart(anyhow, model)


def test_text_that_is_padding_teaches_no_router() -> None:
    model, _ = grouped()
    rule = Moefy(num_experts=GROUPS)
    padded = []
    for given in TEXT:
        more = {name: torch.cat([values, torch.zeros_like(values)], 1) for name, values in given.items()}
        more["documents_BT"][:, 16:] = -1
        padded.append(more)
    one, other = (weights_of(converted(rule, model, moefy, text)) for text in (TEXT, padded))
    for name, weight in one.items():
        assert torch.allclose(weight, other[name], atol=1e-4)


def test_experts_are_made_one_weight_at_a_time() -> None:
    model, _ = grouped()
    found = converted(Moefy(num_experts=4, experts_per_token=2), model, moefy, TEXT)
    first, second = (found.weights["blocks.0.mlp.experts.down"].gather() for _ in range(2))
    assert first is not None and second is not None and first.data_ptr() != second.data_ptr()
    assert found.about["is_exact"] is False and found.about["exact_with"] == "experts_per_token=4"


@pytest.mark.parametrize(
    ("rule", "shape", "words"),
    [
        (
            Moefy(num_experts=6, experts_per_token=2),
            {"ffn": 64},
            r"convert.num_experts: 6 does not divide .* 64; num_experts=4",
        ),
        (
            Moefy(),
            {"num_experts": 4},
            "convert: splits dense MLPs, but the model has 4 experts already; use a dense",
        ),
        (Moefy(num_experts=4), {"ffn": 64}, "convert.experts_per_token: 8 of 4 experts; 4 or less"),
        (
            Moefy(),
            {"ffn": 64, "bias": ("mlp",)},
            "convert: splits MLPs without biases, .* without mlp in bias",
        ),
    ],
)
def test_what_cannot_be_divided_says_why(rule: Moefy, shape: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rule.converted(spec(**shape))


def test_kinds_without_mixtures_and_models_without_text_are_refused() -> None:
    plain = cast(ModelSpec, SimpleNamespace(kind="plain"))
    with pytest.raises(
        ConfigError, match="convert: splits MLPs into experts, but models of kind plain have no experts"
    ):
        Moefy().converted(plain)
    with pytest.raises(
        ConfigError, match=r"convert.tokens: needs training text; use a model whose training text is here"
    ):
        converted(Moefy(num_experts=4, experts_per_token=2), network(spec(ffn=64)), moefy)
