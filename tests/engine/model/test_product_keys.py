"""A product-key memory beside brute force over all pairs of keys."""

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.optim.muon import Muon
from atelier.engine.model.attention import Cache
from atelier.engine.model.contract import Model
from atelier.engine.model.load import build, initialise
from atelier.engine.model.product_keys import ProductKeys
from atelier.engine.optim.load import build as build_optim

HIDDEN, ROWS, TOKENS = 12, 2, 5


def drawn(seed: int) -> tuple[ProductKeyMemory, bool]:
    """Sizes, and whether scores tie: then they are sums of small whole numbers."""
    draw = random.Random(seed)
    keys = draw.randint(2, 9)
    ties = draw.random() < 0.5
    spec = ProductKeyMemory(
        blocks=(0,),
        keys=keys,
        heads=draw.randint(1, 3),
        per_token=draw.randint(1, keys**2),
        width=2 * draw.randint(1, 5),
        query_norm=not ties and draw.random() < 0.7,
    )
    return spec, ties


def memory(spec: ProductKeyMemory, seed: int, dtype: torch.dtype, *, ties: bool = False) -> ProductKeys:
    made = ProductKeys(spec, HIDDEN, 1e-5)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            weight.normal_(generator=generator)
            if ties and name != "values":
                weight.round_()
    return made.to(dtype)


def brute_force(made: ProductKeys, x_BTD: Tensor) -> Tensor:
    """Over all pairs; of equal scores the pair of the better first key first, then of the smaller number."""
    width, number = made.width, made.keys.shape[2]
    whole_BTD = torch.zeros_like(x_BTD)
    for row, token in torch.cartesian_prod(torch.arange(x_BTD.shape[0]), torch.arange(x_BTD.shape[1])):
        for head in range(made.heads):
            query_E = made.queries[head * width : (head + 1) * width] @ x_BTD[row, token]
            if made.has_norm:
                query_E = query_E * (query_E.square().mean() + 1e-5).rsqrt() * made.norm.weight
            first = made.keys[0, head] @ query_E[: width // 2]
            second = made.keys[1, head] @ query_E[width // 2 :]
            sums = (first[:, None] + second).detach().tolist()
            one, two = first.detach().tolist(), second.detach().tolist()
            pairs = [(-sums[i][j], -one[i], i, -two[j], j) for i in range(number) for j in range(number)]
            chosen = [(i, j) for _, _, i, _, j in sorted(pairs)[: made.per_token]]
            share_K = torch.stack([first[i] + second[j] for i, j in chosen]).softmax(0)
            rows = made.values[[i * number + j for i, j in chosen]]
            whole_BTD[row, token] = whole_BTD[row, token] + share_K @ rows
    return whole_BTD


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_it_and_its_gradients_equal_brute_force_over_all_pairs(
    seed: int, dtype: torch.dtype, most: float
) -> None:
    spec, ties = drawn(seed)
    made = memory(spec, seed, dtype, ties=ties)
    x_BTD = torch.randn(ROWS, TOKENS, HIDDEN, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    x_BTD = (x_BTD.round() if ties else x_BTD).requires_grad_()
    down_BTD = torch.randn(x_BTD.shape, dtype=dtype, generator=torch.Generator().manual_seed(seed + 1))
    given = [x_BTD, *made.parameters()]
    results = []
    for compute in (lambda x: made(x)[0], lambda x: brute_force(made, x)):
        y_BTD = compute(x_BTD)
        results.append([y_BTD, *torch.autograd.grad((y_BTD * down_BTD).sum(), given)])
    for mine, theirs in zip(*results, strict=True):
        scale = max(1.0, float(theirs.detach().abs().max()))
        assert float((mine - theirs).detach().abs().max()) < most * scale


def test_equal_keys_are_taken_in_order() -> None:
    """With all keys alike every pair has one score, and the first K pairs are taken."""
    made = memory(ProductKeyMemory(blocks=(0,), keys=4, heads=1, per_token=6), 0, torch.float64)
    with torch.no_grad():
        made.keys.fill_(0.5)
    x_BTD = torch.randn(1, 3, HIDDEN, dtype=torch.float64)
    assert torch.allclose(made(x_BTD)[0], made.values[:6].mean(0).expand(1, 3, -1))


def spec(**more: Any) -> GPT:
    sizes = {"keys": 6, "heads": 2, "per_token": 4, "width": 8, "blocks": (1,)} | more
    return GPT(num_layers=3, hidden=32, num_heads=2, vocab=50, init_std=0.2, memory=ProductKeyMemory(**sizes))


def network(of: GPT) -> Model:
    made = build(of)
    initialise(made, seed=1, name="m")
    return made


def rows(tokens: int = 8) -> dict[str, Tensor]:
    ids = torch.randint(50, (2, tokens), generator=torch.Generator().manual_seed(3))
    positions = torch.arange(tokens).expand(2, -1)
    return {"tokens_BT": ids, "positions_BT": positions, "documents_BT": torch.zeros_like(ids)}


def test_counts_are_those_of_the_plain_module_and_products_those_of_its_matrices() -> None:
    for norm in (True, False):
        of = spec(query_norm=norm, blocks=(0, 2))
        made = network(of)
        assert {name: tuple(weight.shape) for name, weight in made.named_parameters()} == of.shapes()
        assert sum(weight.numel() for weight in made.parameters()) == of.num_params()
    plain = spec().model_copy(update={"memory": ProductKeyMemory()})
    more = [a - b for a, b in zip(spec().block_flops(16), plain.block_flops(16), strict=True)]
    queries, scores, values = 2 * 8 * 32, 2 * 6 * 8, 2 * 4 * 32
    assert more == [0, 6 * (queries + scores + values), 0, 0]


def test_without_value_rows_a_memory_adds_nothing() -> None:
    made = network(spec()).eval()
    before = made(rows()).hidden
    with torch.no_grad():
        made.get_parameter("blocks.1.memory.values").zero_()
        plain = build(spec().model_copy(update={"memory": ProductKeyMemory()})).eval()
        plain.load_state_dict({name: w for name, w in made.state_dict().items() if ".memory." not in name})
    assert torch.equal(made(rows()).hidden, plain(rows()).hidden)
    assert not torch.allclose(before, plain(rows()).hidden, atol=1e-4)


def test_token_by_token_with_a_cache_it_computes_what_whole_rows_do() -> None:
    made, given = network(spec()).double().eval(), rows()
    whole = made(given).hidden
    cache: Cache = made.new_cache(2, 8, torch.float64)
    parts = [
        made({name: value[:, at : at + 1] for name, value in given.items()}, cache).hidden for at in range(8)
    ]
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-12)


def test_values_and_keys_are_moved_by_adamw_and_not_turned_by_muon() -> None:
    made = network(spec())
    names = {id(weight): name for name, weight in made.named_parameters()}
    groups = build_optim(Muon(lr=1e-3), made.named_parameters()).param_groups
    turned = {names[id(weight)] for group in groups if group["is_muon"] for weight in group["params"]}
    mine = {name.rsplit(".", 1)[1] for name in turned if ".memory." in name}
    assert mine == {"queries"}
    decayed = build_optim(AdamW(lr=1e-3), made.named_parameters()).param_groups[0]["params"]
    assert "blocks.1.memory.values" in {names[id(weight)] for weight in decayed}


def test_under_bf16_the_best_pairs_are_those_of_scores_in_float32() -> None:
    """Scores of 16 bits would often tie."""
    made = memory(ProductKeyMemory(blocks=(0,), keys=64, heads=1, per_token=4), 0, torch.float32)
    x_BTD = torch.randn(1, 40, HIDDEN).bfloat16()
    nn.init.normal_(made.queries)
    with torch.autocast("cpu", torch.bfloat16):
        y_BTD, _ = made(x_BTD)
    assert y_BTD.dtype == torch.float32
    rounded_ND = torch.nn.functional.linear(x_BTD[0], made.queries.bfloat16())
    query_NHE = torch.nn.functional.rms_norm(rounded_ND.float()[:, None], (64,), made.norm.weight, 1e-5)
    first, second = (
        torch.einsum("nhe,hke->nhk", part, keys)
        for part, keys in zip(query_NHE.chunk(2, -1), made.keys, strict=True)
    )
    sums = (first[..., :, None] + second[..., None, :]).flatten(-2)
    best = sums.topk(4, dim=-1)
    share = best.values.softmax(-1)
    expected = (share[..., None] * made.values[best.indices]).sum((1, 2))
    assert torch.allclose(y_BTD[0], expected, atol=1e-4)


def test_in_training_a_model_counts_the_keys_that_text_reads() -> None:
    """A token reads per_token pairs in each head; padding reads none, and an unread key is dead."""
    made, given = network(spec(blocks=(0, 2))), rows()
    given["documents_BT"][1, 4:] = -1
    found = made.train()(given).aux["reads_LM"]
    assert found.shape == (2, 2 * 2 * 6) and found.view(2, 4, 6).sum(-1).eq(12 * 4).all()
    with torch.no_grad():
        made.get_parameter("blocks.2.memory.keys").fill_(0.5)  # ties: the first pairs for all tokens
    reads = made(given).aux["reads_LM"]
    metrics = made.measured({"reads_LM": reads}, 12)
    assert set(metrics) == {f"memory/{name}/{block}" for name in ("dead", "kl") for block in (0, 2)}
    first, second = reads[1].view(2, 2, 6)
    assert (first[:, 0] == 48).all() and (second[:, :4] == 12).all()
    assert metrics["memory/dead/2"] == (2 * 5 + 2 * 2) / 24
    assert metrics["memory/kl/2"] == pytest.approx((math.log(6) + math.log(6 / 4)) / 2)
    assert not made.eval()(given).aux["reads_LM"].any()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 7}, "width 7 is odd"),
        ({"per_token": 37}, r"per_token 37 is more than the keys \* keys = 36 value rows"),
        ({"blocks": (1, 1)}, "blocks names a block twice"),
        ({"blocks": (3,)}, "memory.blocks has 3, but there are 3 blocks"),
        ({"blocks": (-1,)}, "memory.blocks has -1, but there are 3 blocks"),
        ({"blocks": ()}, "is given, but blocks is empty: no block has a memory"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        spec(**fields)
