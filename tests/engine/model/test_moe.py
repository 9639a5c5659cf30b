"""Routers: every token's experts and weights, balance, competition inside groups."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.base import parse
from atelier.engine.config.blocks import MLPS, MLPKind
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import ExpertProducts
from atelier.engine.model import expert_mlp
from atelier.engine.model.contract import Output, stored
from atelier.engine.model.gpt import Decoder
from atelier.engine.model.load import build, initialise
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.model.router import base
from atelier.engine.model.router.base import EPSILONS, LARGEST, assigned, auctioned
from atelier.engine.model.router.hash import HashRouter
from atelier.engine.model.routing import TokenRows
from atelier.engine.model.transformer import MLP
from tests.engine.product_shapes import ProductShapes

ROWS, TOKENS, EXPERTS = 4, 16, 4
COMPETING: dict[str, dict[str, Any]] = {
    "capacity": {"experts_per_token": 2, "router": {"kind": "topk", "capacity": 1.0}},
    "expert_choice": {"experts_per_token": 2, "router": {"kind": "expert_choice"}},
    "base": {"experts_per_token": 1, "router": {"kind": "base"}},
}
ALONE: dict[str, dict[str, Any]] = {
    "topk": {"router": {"kind": "topk"}},
    "groups": {"router": {"kind": "topk", "score": "sigmoid", "groups": 2}},
    "bias": {"router": {"kind": "topk", "balance": "bias"}},
    "row": {"router": {"kind": "topk", "balance": "row", "z_weight": 1e-3}},
    "batch": {"router": {"kind": "topk", "balance": "batch"}},
    "hash": {"router": {"kind": "hash"}},
    "shared": {"router": {"kind": "topk"}, "shared": 1, "every": 2, "activation": "gelu", "ffn": 48},
}


def model(*, experts_per_token: int = 2, **experts: Any) -> Decoder:
    numbers = {"num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": 64, "num_experts": EXPERTS}
    spec = parse(GPT, numbers | {"experts_per_token": experts_per_token, "experts": experts}, "model")
    found = build(spec).double()
    initialise(found, seed=1, name="m")
    with torch.no_grad():
        for name, weight in found.named_parameters():
            if name.endswith("router.weight"):
                weight.mul_(50)  # some experts are far better than others
    assert isinstance(found, Decoder)
    return found


def batch(tokens_BT: Tensor) -> dict[str, Tensor]:
    positions_BT = torch.arange(tokens_BT.shape[1]).expand_as(tokens_BT)
    return {
        "tokens_BT": tokens_BT,
        "positions_BT": positions_BT,
        "documents_BT": torch.zeros_like(tokens_BT),
    }


def drawn(seed: int = 0) -> Tensor:
    return torch.randint(0, 64, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))


def output(net: Decoder, tokens_BT: Tensor) -> Output:
    return net(batch(tokens_BT))


@pytest.mark.parametrize("how", [*ALONE, *COMPETING])
def test_a_mixture_has_the_weights_that_its_spec_says_and_moves_all_of_them(how: str) -> None:
    net = model(**(ALONE | COMPETING)[how])
    assert {name: tuple(weight.shape) for name, weight in stored(net)} == net.spec.shapes()
    found = output(net.train(), drawn())
    sums = [each.weight * found.aux[name] for name, each in net.sums().items() if each.weight]
    (found.hidden.square().sum() + sum(sums)).backward()
    assert [name for name, weight in net.named_parameters() if weight.grad is None] == []


@pytest.mark.parametrize("how", [*ALONE, *COMPETING])
def test_groups_of_rows_mean_the_same_in_any_micro_batch(how: str) -> None:
    settings = (ALONE | COMPETING)[how]
    net = model(**settings | {"group": 2}).train()
    together = output(net, drawn())
    parts = [output(net, rows) for rows in drawn().split(2)]
    torch.testing.assert_close(
        torch.cat([part.hidden for part in parts]), together.hidden, rtol=0, atol=1e-12
    )
    for name, whole in together.aux.items():
        torch.testing.assert_close(sum(part.aux[name] for part in parts), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", COMPETING)
def test_rows_of_a_group_compete_and_a_half_of_it_is_another_result(how: str) -> None:
    """The broken twin of the test above: micro-batches that cut groups."""
    net = model(**COMPETING[how] | {"group": 2}).train()
    alone = model(**COMPETING[how] | {"group": 1}).train()
    difference = (output(net, drawn()).hidden - output(alone, drawn()).hidden).abs().max()
    assert difference > 1e-6


@pytest.mark.parametrize("how", [*ALONE, *COMPETING])
def test_held_out_tokens_are_routed_alone(how: str) -> None:
    net = model(**(ALONE | COMPETING)[how]).eval()
    whole = output(net, drawn()).hidden
    torch.testing.assert_close(output(net, drawn()[:1, :9]).hidden, whole[:1, :9], rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", [*ALONE, "capacity"])
def test_no_token_sees_a_later_one_of_its_row(how: str) -> None:
    net = model(**(ALONE | COMPETING)[how]).train()
    later = drawn().clone()
    later[-1, 9:] = (later[-1, 9:] + 1) % 64
    before = output(net, drawn()).hidden[-1, :9]
    torch.testing.assert_close(output(net, later).hidden[-1, :9], before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", ["expert_choice", "base"])
def test_where_experts_choose_tokens_see_later_ones(how: str) -> None:
    net = model(**COMPETING[how]).train()
    later = drawn().clone()
    later[:, 9:] = (later[:, 9:] + 1) % 64
    assert (output(net, later).hidden[:, :9] - output(net, drawn()).hidden[:, :9]).abs().max() > 1e-6


def test_every_expert_gets_its_share_where_they_choose() -> None:
    for how in ("expert_choice", "base"):
        net = model(**COMPETING[how]).train()
        share = ROWS * TOKENS * net.spec.experts_per_token / EXPERTS
        assert (output(net, drawn()).aux["load_LX"] == share).all()


def test_an_assignment_is_the_best_of_all() -> None:
    from itertools import permutations

    score = torch.randn(6, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    best = max(
        sum(float(score[token, expert]) for token, expert in enumerate(order))
        for order in set(permutations([0, 0, 1, 1, 2, 2]))
    )
    found = assigned(score)
    assert found.bincount().tolist() == [2, 2, 2]
    assert float(score.gather(1, found[:, None]).sum()) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(24))
def test_an_auction_comes_as_near_to_the_best_assignment_as_its_last_increment(seed: int) -> None:
    """Of drawn scores: even, skewed, tied, of one value, far from zero, infinite, no numbers."""
    draw = random.Random(seed)
    number = draw.choice([1, 2, 3, 8, 16])
    size = number * draw.choice([1, 2, 7, 32])
    score = torch.randn(size, number, generator=torch.Generator().manual_seed(seed))
    kind = draw.choice(["even", "skewed", "tied", "equal", "far", "small", "infinite", "nan"])
    if kind == "skewed":
        score -= 3 * torch.arange(1, number + 1).log()
    elif kind == "far":
        score += 1e4
    elif kind in ("tied", "equal", "small"):
        score = {"tied": score.round(), "equal": 0 * score + 5, "small": 1e-30 * score}[kind]
    elif kind in ("infinite", "nan"):
        score[draw.randrange(size)] = (
            draw.choice([float("inf"), -float("inf")]) if kind != "nan" else float("nan")
        )
    found, best = auctioned(score.nan_to_num()), assigned(score)
    assert found.bincount(minlength=number).tolist() == [size // number] * number
    score = score.nan_to_num().double().clamp(-LARGEST, LARGEST)
    sums = [float(score.gather(1, each[:, None]).sum()) for each in (best, found)]
    most = size * EPSILONS[-1] * float(score.max() - score.min())
    assert -1e-9 * abs(sums[0]) <= sums[0] - sums[1] <= most + 1e-9 * abs(sums[0])


def test_padding_bids_for_nothing_and_an_auction_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    score = torch.randn(64, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    is_text = torch.arange(64) < 24
    found = auctioned(score * is_text[:, None], is_text)
    assert found.bincount(minlength=8).tolist() == [8] * 8
    assert (found[:24] == score[:24].argmax(-1)).float().mean() > 0.9  # there is room for nearly all
    monkeypatch.setattr(base, "MOST_ROUNDS", 8)
    crowded = score - 9 * torch.arange(8)
    assert auctioned(crowded).bincount(minlength=8).tolist() == [8] * 8


def test_capacity_loses_choices_and_says_how_many() -> None:
    net = model(**COMPETING["capacity"]).train()
    aux = output(net, drawn()).aux
    assert (aux["lost_L"] > 0).all()
    assert (aux["load_LX"].sum(-1) + aux["lost_L"] == ROWS * TOKENS * 2).all()
    assert (aux["load_LX"] <= ROWS * TOKENS * 2 / EXPERTS).all()
    measured = net.measured(aux, ROWS * TOKENS)
    assert measured["experts/lost/0"] > 0 and measured["experts/load/0"] >= 1


def test_a_bias_evens_out_loads_without_a_loss() -> None:
    net = model(router={"kind": "topk", "balance": "bias", "balance_weight": 0.02}).train()
    worst = []
    with torch.no_grad():
        for name, bias in net.named_buffers():
            if name.endswith("router.bias"):
                bias[0] = 0.5
        for _ in range(60):
            aux = output(net, drawn()).aux
            worst.append(net.measured(aux, ROWS * TOKENS)["experts/load/0"])
            net.after_step(aux)
    assert worst[0] > 1.5 and worst[-1] < 1.3


def test_balance_over_the_batch_begins_even_and_follows_the_step_before() -> None:
    net = model(router={"kind": "topk", "balance": "batch"}).train()
    first = output(net, drawn()).aux
    torch.testing.assert_close(first["balance"], torch.tensor(2.0 * ROWS * TOKENS).double())
    with torch.no_grad():
        net.after_step(first)
    second = output(net, drawn()).aux["balance"]
    assert second > first["balance"] + 1  # the loads are those that the router prefers


def test_experts_of_a_hash_differ_and_are_the_tokens_own() -> None:
    router = HashRouter(model(experts_per_token=3, router={"kind": "hash"}).spec, 0)
    chosen = router.route(torch.zeros(64, 32), TokenRows(4, torch.arange(64), True)).chosen_NK
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert chosen.flatten().bincount().min() > 64 * 3 / EXPERTS / 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"experts_per_token": 5}, "experts_per_token 5 is more than num_experts 4"),
        ({"experts_per_token": 2, "router": {"kind": "base"}}, "base assigns one expert per token"),
        ({"router": {"kind": "topk", "groups": 3}}, "is not divisible by router.groups 3"),
        ({"experts_per_token": 3, "router": {"kind": "topk", "groups": 2}}, "more than the 2 experts"),
        ({"every": 3}, "no block would have experts"),
        ({"router": {"kind": "topp"}}, "did you mean topk?"),
    ],
)
def test_bad_numbers_of_experts_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model(**settings)
    assert words in str(refused.value)


@pytest.mark.parametrize("how", [*ALONE, *COMPETING])
def test_padding_takes_no_experts_place_and_changes_nothing(how: str) -> None:
    net = model(**(ALONE | COMPETING)[how]).train()
    text, other = batch(drawn()), batch(drawn())
    for each in (text, other):
        each["documents_BT"][:, 12:] = -1
    other["tokens_BT"][:, 12:] = 7
    first, second = net(text), net(other)
    torch.testing.assert_close(first.hidden[:, :12], second.hidden[:, :12], rtol=0, atol=1e-12)
    for name, value in first.aux.items():
        torch.testing.assert_close(value, second.aux[name], rtol=1e-12, atol=1e-12)
    if how != "expert_choice":  # whose experts take as many tokens all the same
        assert (first.aux["load_LX"].sum(-1) <= ROWS * 12 * net.spec.experts_per_token).all()


def test_a_router_without_a_kind_is_the_usual_one_and_a_wrong_key_is_named() -> None:
    assert model(router={"balance": "bias"}).spec.experts.router.kind == "topk"
    with pytest.raises(ConfigError) as refused:
        model(router={"balanc": "bias"})
    assert "did you mean balance?" in str(refused.value)


def test_frozen_experts_compute_no_gradients_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    product = expert_mlp.product
    monkeypatch.setattr(
        expert_mlp, "product", lambda *given: (made.append(len(given[2])), product(*given))[1]
    )
    experts = ExpertWeights(2, 8, 16)
    experts.products = "loop"
    for weight in experts.parameters():
        torch.nn.init.normal_(weight)
    x_PD = torch.randn(7, 8, requires_grad=True)
    wanted = torch.autograd.grad(experts.compute(x_PD, [4, 3]).sum(), [x_PD, *experts.weights()])
    of_weights = [rows for rows in made if rows in (8, 16)]
    assert len(of_weights) == 6
    made.clear()
    experts.requires_grad_(False)
    experts.compute(x_PD, [4, 3]).sum().backward()
    assert {*made} == {3, 4} and x_PD.grad is not None
    assert torch.equal(x_PD.grad, wanted[0])


@pytest.mark.parametrize("size", [9, 11, 3, 1])
def test_tokens_that_the_experts_do_not_divide_are_assigned_as_evenly_as_they_can(size: int) -> None:
    scores = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
    found = assigned(scores)
    assert len(found) == size and found.bincount(minlength=4).max() == -(-size // 4)


def test_a_score_that_is_no_number_is_left_to_the_loss() -> None:
    scores = torch.randn(8, 4)
    scores[3] = float("nan")
    assert assigned(scores).bincount(minlength=4).tolist() == [2] * 4


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(8))
def test_one_product_for_all_experts_has_the_bits_of_one_for_each(
    seed: int, dtype: torch.dtype, one_thread: None
) -> None:
    draw = random.Random(seed)
    experts = ExpertWeights(
        draw.randint(1, 12),
        draw.choice((8 * draw.randint(1, 9), draw.randint(1, 40))),
        64 * draw.randint(1, 3),
        kind=draw.choice(tuple(MLPS)),
    )
    for weight in experts.parameters():
        torch.nn.init.normal_(weight)
    counts = [draw.choice((0, 1, draw.randint(2, 90))) for _ in range(experts.num_experts)]
    x_PD = torch.randn(sum(counts), experts.up.shape[2], requires_grad=True)
    experts.requires_grad_(draw.random() < 0.7)
    wanted = [weight for weight in (x_PD, *experts.weights()) if weight.requires_grad]
    found: list[list[Tensor]] = []
    ways: tuple[ExpertProducts, ...] = ("loop", "grouped", "auto")
    for experts.products in ways:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            y_PD = experts.compute(x_PD, counts)
        found.append([y_PD, *torch.autograd.grad(y_PD.float().pow(2).sum(), wanted)])
    pairs = [pair for other in found[1:] for pair in zip(found[0], other, strict=True)]
    for one, other in pairs:
        if dtype == torch.float32:
            assert torch.equal(one, other)
        else:  # one of them pads, which may change how oneDNN cuts a sum
            assert (one - other).norm() <= 1e-2 * other.norm()


@pytest.mark.parametrize("products", ["loop", "grouped"])
@pytest.mark.parametrize("kind", MLPS)
def test_experts_have_the_bits_of_mlps_and_of_their_gradients(
    kind: MLPKind, products: ExpertProducts, one_thread: None
) -> None:
    """Of each expert's tokens, in each kind of MLP: values and gradients are those of autograd."""
    counts, dtypes = [5, 0, 64, 17], (torch.float32, torch.float64)
    for dtype in dtypes if products == "loop" else dtypes[:1]:
        experts = ExpertWeights(len(counts), 32, 64, kind=kind).to(dtype)
        experts.products = products
        for weight in experts.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        x_PD = torch.randn(sum(counts), 32, dtype=dtype, requires_grad=True)
        y_PD = experts.compute(x_PD, counts)
        found = torch.autograd.grad(y_PD.pow(3).sum(), [x_PD, *experts.weights()])
        spec = GPT(num_layers=1, hidden=32, num_heads=2, ffn=64, mlp=kind, vocab=64)
        rows = x_PD.detach().split(counts)
        for number, (x_QD, count) in enumerate(zip(rows, counts, strict=True)):
            dense = MLP(spec).to(dtype)
            state = {f"{name}.weight": weight[number] for name, weight in experts.named_parameters()}
            dense.load_state_dict(state)
            x_QD = x_QD.requires_grad_()
            wanted_QD = dense(x_QD)
            wanted = torch.autograd.grad(wanted_QD.pow(3).sum(), [x_QD, *dense.parameters()])
            first = sum(counts[:number])
            assert torch.equal(y_PD[first : first + count], wanted_QD)
            assert torch.equal(found[0][first : first + count], wanted[0])
            for one, other in zip(found[1:], wanted[1:], strict=True):
                assert torch.equal(one[number], other)


def test_products_of_low_precision_on_cpus_have_few_shapes() -> None:
    """A shape that oneDNN has not met costs it 20 times the product."""
    experts = ExpertWeights(3, 8, 16)
    experts.products = "loop"
    for weight in experts.parameters():
        torch.nn.init.normal_(weight)
    weights = [*experts.weights()]
    for dtype, least, most in ((torch.bfloat16, 4, 24), (torch.float32, 50, 1000)):
        products = ProductShapes()
        for number in range(17, 33, 2):
            counts = [number - 16, number, 112 - 2 * number]
            x_PD = torch.randn(sum(counts), 8, requires_grad=True)
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32), products:
                found_PD = experts.compute(x_PD, counts)
                found = torch.autograd.grad(found_PD.float().pow(2).sum(), [x_PD, *weights])
            alone = [
                expert_mlp.mlp(
                    rows_QD.to(dtype), tuple(weight[expert].to(dtype) for weight in weights), "silu"
                )
                for expert, rows_QD in enumerate(x_PD.split(counts))
            ]
            wanted = torch.autograd.grad(torch.cat(alone).float().pow(2).sum(), [x_PD, *weights])
            for one, other in zip(found, wanted, strict=True):
                assert (one - other).norm() < 1e-2 * other.norm()
        assert least < len(products.shapes) < most
