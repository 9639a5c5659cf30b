"""Conversions: the resulting model, and that it computes the expected values."""

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from atelier.engine.config.conversion.depth import Depth
from atelier.engine.config.conversion.merge_experts import MergeExperts
from atelier.engine.config.conversion.upcycle import Upcycle
from atelier.engine.config.conversion.width import Width
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
from atelier.engine.conversion import depth, merge_experts, upcycle, width
from atelier.engine.conversion.contract import Converted, Parent
from atelier.engine.convert import convert
from atelier.engine.inference.opened import read_generator
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
    found = converted(rule, model, by, [batch(seed=seed) for seed in range(4)])
    for pieces in found.ancestry.values():
        assert math.fsum(piece.share for piece in pieces) == pytest.approx(1.0)
    return network(new, weights_of(found))


def converted(rule: ConversionSpec, model: Model, by: Any, text: Any = ()) -> Converted:
    weights = {name: weight.detach() for name, weight in stored(model)}
    return by.convert(rule, Parent(weights, model.spec, lambda: model, text), rule.converted(model.spec))


def weights_of(found: Converted) -> dict[str, Tensor]:
    state = {name: weight.gather() for name, weight in found.weights.items()}
    return {name: weight for name, weight in state.items() if weight is not None}


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("every", [1, 2])
def test_experts_that_are_copies_of_the_mlp_compute_what_it_did(mlp: str, every: int) -> None:
    dense = network(spec(mlp=mlp))
    sparse = made_of(Upcycle(num_experts=4, every=every), dense, upcycle)
    assert sparse.spec.num_experts == 4 and len(sparse.spec.mixtures) == 2 // every
    assert torch.allclose(hidden(sparse), hidden(dense), atol=1e-5)


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
def test_parts_of_an_mlp_chosen_together_compute_what_it_did(mlp: str) -> None:
    """Eight experts of half an MLP each in groups of two; a token meets two groups."""
    dense = network(spec(mlp=mlp, ffn=64))
    sparse = made_of(Upcycle(num_experts=8, experts_per_token=4, finer=2), dense, upcycle)
    assert sparse.spec.expert_inner == 32
    assert apart(sparse, dense) < 1e-5


def test_orthogonal_rows_share_tokens_out_and_compute_what_the_mlp_did() -> None:
    dense = network(spec())
    rule = Upcycle(num_experts=4, experts_per_token=1, router="orthogonal")
    sparse = made_of(rule, dense, upcycle)
    assert apart(sparse, dense) < 1e-5
    rows_XD = dict(stored(sparse))["blocks.0.mlp.router.weight"]
    assert torch.allclose(rows_XD @ rows_XD.T, 1e-4 * torch.eye(4), atol=1e-8)


SHAPES: list[dict[str, Any]] = [
    {},
    {"tied": False, "num_heads": 4, "num_kv_heads": 2},
    {"positions": "learned", "norm": "layer", "mlp": "gelu", "bias": ("qkv", "out", "mlp")},
    {"qk_norm": True, "head_dim": 12, "window": 4, "window_blocks": (1,)},
    {"multipliers": {"embedding": 3.0, "residual": 0.5, "logits": 0.7}},
    {"base_width": 16},
    {"base_width": 16, "tied": False},
]


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_that_add_nothing_change_nothing(shape: dict[str, Any]) -> None:
    model = randomised(network(spec(**shape)))
    deep = made_of(Depth(num_layers=5), model, depth)
    assert deep.spec.num_layers == 5 and apart(deep, model) < 1e-6
    stacked = made_of(Depth(num_layers=5, how="stacked"), model, depth)
    assert apart(stacked, model) > 1e-2


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [2, 3])
def test_a_whole_multiple_of_the_width_changes_nothing(shape: dict[str, Any], factor: int) -> None:
    model = randomised(network(spec(**shape)))
    wide = made_of(Width(hidden=32 * factor), model, width)
    assert wide.spec.hidden == 32 * factor and apart(wide, model) < 1e-5


def test_copies_of_the_width_do_not_stay_equal() -> None:
    """Copies that share equally get equal gradients, and stay equal for good."""
    for spread, is_equal in ((0.0, True), (0.5, False)):
        wide = made_of(Width(spread=spread), randomised(network(spec())), width)
        given = batch(seed=3)
        (wide(given).hidden @ wide.head_weight.T).log_softmax(-1)[..., 5].sum().backward()
        for name in ("blocks.0.mlp.up.weight", "blocks.1.attention.query.weight"):
            first, second = gradient(wide, name).chunk(2)
            assert torch.allclose(first, second, atol=1e-6) == is_equal


def test_routers_of_upcycled_experts_learn() -> None:
    """Copies are equal, so that at first no router has a gradient; they part as their weights differ. After
    200 steps no expert is without tokens.
    """
    model = made_of(Upcycle(num_experts=4), network(spec()), upcycle).train()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shares = []
    for step in range(200):
        given = batch(seed=step % 4)
        logits = model(given).hidden @ model.head_weight.T
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), given["tokens_BT"][:, 1:].flatten()
        )
        optim.zero_grad()
        loss.backward()
        router = gradient(model, "blocks.0.mlp.router.weight").norm()
        experts = gradient(model, "blocks.0.mlp.experts.up").norm()
        shares.append(float(router / experts))
        optim.step()
    loads = sum(model(batch(seed=seed)).aux["load_LX"] for seed in range(4))
    print(
        f"routers' gradients are up to {max(shares[:50]):.1e} of the experts' within 50 steps; loads {loads}"
    )
    assert shares[0] < 1e-4 and max(shares[:50]) > 1e-3
    assert (torch.as_tensor(loads) > 0).all()


def gradient(model: Model, name: str) -> Tensor:
    found = model.get_parameter(name).grad
    assert found is not None
    return found


@torch.inference_mode()
def apart(one: Model, other: Model) -> float:
    """The largest difference of logits, in units of their scale."""
    given = batch(seed=9)
    logits = [model(given).hidden @ model.head_weight.T for model in (one, other)]
    found = float((logits[0] - logits[1]).abs().max() / logits[1].std())
    print(f"logits apart by {found:.1e} of their scale")
    return found


def randomised(model: Model) -> Model:
    """Norms and biases that matter."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for _, weight in stored(model):
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


def twins() -> Model:
    """A model with 8 experts in pairs: the second of a pair has the first one's inner units in another order,
    and is asked by the same tokens.
    """
    model, draw = network(spec(num_experts=8, experts_per_token=1)), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in model.blocks:
            mixture = block.mlp
            for first in range(0, 8, 2):
                order = torch.randperm(mixture.experts.up.shape[1], generator=draw)
                for name in ("gate", "up"):
                    weight = getattr(mixture.experts, name)
                    weight[first + 1] = weight[first][order]
                mixture.experts.down[first + 1] = mixture.experts.down[first][:, order]
                noise = torch.randn(32, generator=draw) * 1e-3
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
    about: Any = converted(rule, model, merge_experts, [batch()]).about
    for members in about["members"].values():
        assert sorted(tuple(sorted(each)) for each in members) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_the_busiest_experts_stay_as_they_are() -> None:
    model = network(spec(num_experts=8, experts_per_token=2, experts=Experts(router=TopK(balance="bias"))))
    with torch.no_grad():
        for block in model.blocks:
            block.mlp.router.bias[[2, 5, 7]] += 10.0  # everyone goes there
    rule = MergeExperts(num_experts=2, by="load")
    found = converted(rule, model, merge_experts, [batch()])
    weights, about = weights_of(found), cast(Any, found.about)
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
    found = [converted(rule, model, merge_experts).about for _ in range(2)]
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
            "clusters need router logits",
        ),
        (
            MergeExperts(num_experts=3),
            {"num_experts": 8, "experts": Experts(router=TopK(groups=2, groups_per_token=2))},
            "merging would mix",
        ),
        (MergeExperts(num_experts=0), {"num_experts": 8, "experts": Experts(shared=1)}, "would be left over"),
        (Upcycle(), {"num_experts": 8}, "has 8 experts"),
        (Upcycle(num_experts=2, experts_per_token=3), {}, "experts_per_token"),
        (Upcycle(experts_per_token=1), {}, "no router learns; experts_per_token=2, or router=orthogonal"),
        (Upcycle(experts_per_token=4, finer=4), {}, "with one group of parts .* experts_per_token=8"),
        (Upcycle(experts_per_token=6, finer=4), {}, "6 is not a multiple of convert.finer=4"),
        (Upcycle(num_experts=6, experts_per_token=6, finer=3), {"ffn": 64}, "3 does not divide .* 64"),
        (Upcycle(router="orthogonal"), {}, "orthogonal assigns one whole expert per token, not 2"),
        (Depth(num_layers=2), {}, "2, but the model has 2 already"),
        (
            Depth(),
            {"num_experts": 4, "experts": Experts(router=Hash())},
            "router hash differs from block to block",
        ),
        (Depth(), {"num_experts": 4, "experts": Experts(every=2)}, "every 2th block"),
        (Width(hidden=48), {}, "48 is not a multiple of the model's 32; only multiples are exact; hidden=64"),
        (Width(), {"num_experts": 4}, "cannot widen mixtures"),
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
    asked = {"rule": rule.model_dump(mode="json"), "measured": 500}
    run = study.run_file("convert", asked, inputs, "model")
    summary: dict[str, Any] = dict(convert(run))
    assert summary["loss_before"] > 0 and summary["loss_after"] > 0
    files = {path.name: path.read_bytes() for path in Path(run.outputs["model"]).iterdir()}
    made = open_input(artifact(tmp_path / "made", "model", files, **summary))
    _, new = read_model(made, study.scratch)
    assert isinstance(new, GPT) and new.num_experts == 2 and summary["params"] == new.num_params()
    generator = read_generator(made, study.scratch, torch.device("cpu"))
    assert generator.text("Poem", Sampling(max_tokens=5))


def test_experts_of_another_kind_than_the_dense_blocks_make_no_dense_model() -> None:
    mixed = spec(num_experts=4, mlp="swiglu", ffn=64, experts=Experts(every=2, activation="gelu", ffn=64))
    with pytest.raises(ConfigError, match="experts use gelu and dense blocks swiglu"):
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
