"""Conversions: what a model becomes, and that it computes what it should."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.conversion.copy_mlp import CopyMLP
from atelier.engine.config.conversion.merge_experts import MergeExperts
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.router.base import Base
from atelier.engine.config.router.expert_choice import ExpertChoice
from atelier.engine.config.router.hash import Hash
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.routing import RouterSpec
from atelier.engine.conversion import copy_mlp, merge_experts
from atelier.engine.convert import convert
from atelier.engine.inference.generator import read_generator
from atelier.engine.io.artifact import open_input
from atelier.engine.model.contract import Model, stored
from atelier.engine.model.load import build, initialise, read_model
from tests.engine.scored_models import Study
from tests.engine.trainings import artifact

VOCAB = 64


def spec(**more: Any) -> GPT:
    return GPT(**{"num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": VOCAB, "init_std": 0.2} | more)


def network(of: GPT, weights: dict[str, Tensor] | None = None) -> Model:
    made = build(of)
    initialise(made, seed=1, name="m")
    if weights is not None:
        made.load_state_dict({name: weight.clone() for name, weight in weights.items()})
    return made.eval()


def batch(rows: int = 4, tokens: int = 16, seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(VOCAB, (rows, tokens), generator=torch.Generator().manual_seed(seed))
    return {
        "tokens_BT": ids,
        "positions_BT": torch.arange(tokens).expand(rows, -1),
        "documents_BT": torch.zeros_like(ids),
    }


@torch.inference_mode()
def hidden(model: Model) -> Tensor:
    return model(batch(seed=9)).hidden


def made_of(rule: ConversionSpec, model: Model, by: Any) -> Model:
    new = rule.converted(model.spec)
    weights, _ = by.convert(rule, model, new, [batch(seed=seed) for seed in range(4)])
    return network(new, weights)


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("every", [1, 2])
def test_experts_that_are_copies_of_the_mlp_compute_what_it_did(mlp: str, every: int) -> None:
    dense = network(spec(mlp=mlp))
    sparse = made_of(CopyMLP(num_experts=4, every=every), dense, copy_mlp)
    assert sparse.spec.num_experts == 4 and len(sparse.spec.mixtures) == 2 // every
    assert torch.allclose(hidden(sparse), hidden(dense), atol=1e-5)


def twins() -> Model:
    """A model with 8 experts in pairs: the second of a pair has the first one's inner units in another order,
    and is asked by the same tokens.
    """
    model = network(spec(num_experts=8, experts_per_token=1))
    with torch.no_grad():
        for block in model.blocks:
            mixture = block.mlp
            for first in range(0, 8, 2):
                order = torch.randperm(mixture.experts.up.shape[1])
                for name in ("gate", "up"):
                    weight = getattr(mixture.experts, name)
                    weight[first + 1] = weight[first][order]
                mixture.experts.down[first + 1] = mixture.experts.down[first][:, order]
                noise = torch.randn(32) * 1e-3
                mixture.router.weight[first + 1] = mixture.router.weight[first] + noise
    return model


def test_experts_that_are_asked_alike_and_differ_in_order_alone_become_one_again() -> None:
    model = twins()
    merged = made_of(MergeExperts(num_experts=4), model, merge_experts)
    assert merged.spec.num_experts == 4
    assert torch.allclose(hidden(merged), hidden(model), atol=1e-3)


def test_without_alignment_the_same_experts_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    model = twins()

    def as_they_are(weights: dict[str, Tensor], first: int, other: int) -> Tensor:
        return torch.arange(weights["up"].shape[1])

    monkeypatch.setattr(merge_experts, "_aligned", as_they_are)
    merged = made_of(MergeExperts(num_experts=4), model, merge_experts)
    assert not torch.allclose(hidden(merged), hidden(model), atol=1e-1)


def test_the_record_names_the_members_of_each_expert() -> None:
    model = twins()
    rule = MergeExperts(num_experts=4)
    _, about = merge_experts.convert(rule, model, rule.converted(model.spec), [batch()])
    for members in about["members"].values():
        assert sorted(tuple(sorted(each)) for each in members) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_the_busiest_experts_stay_as_they_are() -> None:
    model = network(spec(num_experts=8, experts_per_token=2, experts=Experts(router=TopK(balance="bias"))))
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.router.bias[[2, 5, 7]] += 10.0  # everyone goes there
    rule = MergeExperts(num_experts=2, by="load")
    new = rule.converted(model.spec)
    weights, about = merge_experts.convert(rule, model, new, [batch()])
    for path, members in about["members"].items():
        [one], [two] = members
        assert {one, two} <= {2, 5, 7}
        old = dict(stored(model))
        for leaf in ("experts.up", "experts.down", "router.weight", "router.bias"):
            assert torch.equal(weights[f"{path}.{leaf}"], old[f"{path}.{leaf}"][[one, two]])


def test_a_random_choice_reads_no_text_and_is_the_seed_s() -> None:
    model = network(spec(num_experts=8))
    rule = MergeExperts(num_experts=3, by="random", seed=5)
    assert rule.num_tokens == 0
    found = [merge_experts.convert(rule, model, rule.converted(model.spec), [])[1] for _ in range(2)]
    assert found[0] == found[1]


@pytest.mark.parametrize("combine", ["softmax_chosen", "softmax_all", "sum"])
@pytest.mark.parametrize("activation", ["swiglu", "gelu"])
def test_all_experts_become_one_mlp(activation: str, combine: str) -> None:
    experts = Experts(ffn=24, activation=activation, combine=combine)
    model = network(spec(num_experts=4, experts_per_token=4, experts=experts))
    with torch.no_grad():
        for block in model.blocks:
            for weight in block.mlp.experts.parameters():
                weight[1:] = weight[0]
    dense = made_of(MergeExperts(num_experts=0), model, merge_experts)
    assert dense.spec.num_experts == 0 and dense.spec.inner == 24
    assert torch.allclose(hidden(dense), hidden(model), atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "shape", "words"),
    [
        (MergeExperts(num_experts=8), {"num_experts": 8}, "nothing to merge"),
        (MergeExperts(), {}, "has none"),
        (
            MergeExperts(num_experts=2),
            {"num_experts": 8, "experts": Experts(router=Hash())},
            "clusters are of router logits",
        ),
        (
            MergeExperts(num_experts=3),
            {"num_experts": 8, "experts": Experts(router=TopK(groups=2, groups_per_token=2))},
            "merging would mix",
        ),
        (MergeExperts(num_experts=0), {"num_experts": 8, "experts": Experts(shared=1)}, "would be left over"),
        (CopyMLP(), {"num_experts": 8}, "has 8 already"),
        (CopyMLP(num_experts=2, experts_per_token=3), {}, "experts_per_token"),
    ],
)
def test_a_rule_that_is_not_for_a_model_says_why(rule: ConversionSpec, shape: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rule.converted(spec(**shape))


def test_as_a_command_it_writes_a_model_that_generates(tmp_path: Path) -> None:
    study = Study(tmp_path)
    source = study.model(num_experts=6)
    inputs = {"model": source, "tokens": study.tokens}
    rule = MergeExperts(num_experts=2, tokens=256)
    run = study.run_file("convert", {"rule": rule.model_dump(mode="json")}, inputs, "model")
    summary = convert(run)
    files = {path.name: path.read_bytes() for path in Path(run.outputs["model"]).iterdir()}
    made = open_input(artifact(tmp_path / "made", "model", files, **summary))
    _, new = read_model(made, study.scratch)
    assert isinstance(new, GPT) and new.num_experts == 2 and summary["params"] == new.num_params()
    generator = read_generator(made, study.scratch, torch.device("cpu"))
    assert generator.text("Poem", Sampling(max_tokens=5))


def test_experts_of_another_kind_than_the_dense_blocks_make_no_dense_model() -> None:
    mixed = spec(num_experts=4, mlp="swiglu", ffn=64, experts=Experts(every=2, activation="gelu", ffn=64))
    with pytest.raises(ConfigError, match="experts are gelu and the dense blocks swiglu"):
        MergeExperts(num_experts=0).converted(mixed)


@pytest.mark.parametrize("router", [Base(sees_future=True), ExpertChoice(sees_future=True)])
def test_what_experts_weigh_is_measured_where_the_router_says_it(router: RouterSpec) -> None:
    mixed = spec(num_experts=4, experts_per_token=1, experts=Experts(router=router))
    with pytest.raises(ConfigError, match=f"router {router.kind}"):
        MergeExperts(num_experts=0, by="random").converted(mixed)


def test_loads_of_merged_experts_are_summed() -> None:
    model = network(spec(num_experts=6, experts=Experts(router=TopK(balance="batch"))))
    for name, weight in model.state_dict().items():
        if name.endswith("router.load"):
            weight.copy_(torch.arange(1.0, 7.0))
    made = made_of(MergeExperts(num_experts=2), model, merge_experts)
    loads = [weight for name, weight in made.state_dict().items() if name.endswith("router.load")]
    assert loads and all(float(load.sum()) == 21.0 for load in loads)
