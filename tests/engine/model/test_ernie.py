"""Universal blocks with two nets: which rows and tokens see which, memory, soft prompts, decoding, and
weights that no objective reaches.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import Sampling
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Trainable
from atelier.engine.inference.sampling import continuation, continuations
from atelier.engine.model import ernie
from atelier.engine.model.load import build, initialise
from atelier.engine.model.lora import apply

V, T = 61, 12
NETS: dict[str, Any] = {
    "num_layers": 2, "hidden": 32, "num_heads": 4, "vocab": V, "init_std": 0.2,
    "nlu": {"num_layers": 1, "hidden": 16, "num_heads": 2},
    "nlg": {"num_layers": 2, "hidden": 24, "num_heads": 2},
    "classes": {"normal": 3, "topic": 5}, "pairs": {"topic": 6}, "prompts": 4,
}  # fmt: skip
BARE: dict[str, Any] = NETS | {"nlu": {}, "nlg": {}, "classes": {}, "pairs": {}, "prompts": 0}
BOTH = pytest.mark.parametrize("settings", [NETS, BARE], ids=["nets", "norms"])
NLU, NLG = 1, 0


def model_of(dtype: torch.dtype = torch.float64, **settings: Any) -> ernie.ErnieDecoder:
    model = build(Ernie(**settings)).to(dtype)
    initialise(model, seed=1, name="test")
    assert isinstance(model, ernie.ErnieDecoder)
    return model


def rows(*kinds: int, seed: int = 0) -> dict[str, Tensor]:
    """A row of random tokens, one document, for each kind."""
    tokens_BT = torch.randint(0, V, (len(kinds), T), generator=torch.Generator().manual_seed(seed))
    places_BT = torch.arange(T).repeat(len(kinds), 1)
    return {
        "tokens_BT": tokens_BT,
        "positions_BT": places_BT,
        "documents_BT": torch.zeros_like(tokens_BT),
        "bidirectional_B": torch.tensor(kinds),
    }


def marked(batch: dict[str, Tensor], name: str, row: int, places: slice, value: int, rest: int) -> None:
    """Give the batch a value for some tokens of a row."""
    batch.setdefault(name, torch.full_like(batch["tokens_BT"], rest))[row, places] = value


def gradient_of_tokens(model: ernie.ErnieDecoder, batch: dict[str, Tensor], row: int, place: int) -> Tensor:
    """How the hidden state at a place depends on what each token of its row enters with: norms [T]."""
    entered: list[Tensor] = []

    def keep(module: torch.nn.Module, given: Any, result: Tensor) -> Tensor:
        entered.append(result.detach().requires_grad_())
        return entered[0]

    handle = model.embed.register_forward_hook(keep)
    model(batch).hidden[row, place].pow(3).sum().backward()
    handle.remove()
    gradient = entered[0].grad
    assert gradient is not None
    return gradient[row].norm(dim=-1)


@BOTH
def test_a_row_is_what_it_is_alone_whatever_rows_are_beside_it(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    batch = rows(NLU, NLG, NLU, NLG, NLG)
    together = model(batch).hidden
    for row in range(5):
        alone = {name: value[row : row + 1] for name, value in batch.items()}
        assert (model(alone).hidden[0] - together[row]).abs().max() < 1e-12


def test_each_kind_of_rows_passes_its_own_net() -> None:
    model = model_of(**NETS)
    batch = rows(NLU, NLG)
    before = model(batch).hidden
    torch.nn.init.zeros_(model.nlu.leave.weight)
    after = model(batch).hidden
    assert not torch.equal(after[0], before[0]) and torch.equal(after[1], before[1])


def test_what_a_net_computes_is_added_to_the_universal_states_and_a_norm_follows() -> None:
    model, without = (
        model_of(**NETS),
        model_of(**BARE | {name: NETS[name] for name in ("classes", "pairs", "prompts")}),
    )
    for net in (model.nlu, model.nlg):
        torch.nn.init.zeros_(net.leave.weight)
    batch = rows(NLU, NLG)
    hidden = model(batch).hidden
    assert torch.equal(hidden, without(batch).hidden)  # equal weights: they are drawn by name
    assert hidden.mean(-1).abs().max() < 1e-12 and (hidden.var(-1, correction=0) - 1).abs().max() < 1e-3


@BOTH
def test_tokens_of_bidirectional_rows_see_all_of_their_document_causal_ones_no_later_token(
    settings: dict[str, Any],
) -> None:
    model = model_of(**settings)
    batch = rows(NLU, NLG)
    batch["documents_BT"][:, 8:] = 1
    for place in (0, 5):
        assert ((gradient_of_tokens(model, batch, 0, place) > 0) == (torch.arange(T) < 8)).all()
        assert ((gradient_of_tokens(model, batch, 1, place) > 0) == (torch.arange(T) <= place)).all()


def test_without_the_mark_all_rows_are_causal() -> None:
    model = model_of(**NETS)
    batch = rows(NLG, NLG)
    unmarked = {name: value for name, value in batch.items() if name != "bidirectional_B"}
    assert torch.equal(model(unmarked).hidden, model(batch).hidden)


def test_an_early_token_sees_a_late_one_in_bf16() -> None:
    """Further behind than one step of attention by plain products."""
    model = model_of(torch.float32, **NETS)
    num_tokens = 600
    tokens_BT = torch.randint(0, V, (2, num_tokens), generator=torch.Generator().manual_seed(0))
    tokens_BT[1, :-1] = tokens_BT[0, :-1]
    tokens_BT[1, -1] = (tokens_BT[0, -1] + 1) % V
    batch = {
        "tokens_BT": tokens_BT,
        "positions_BT": torch.arange(num_tokens).repeat(2, 1),
        "documents_BT": torch.zeros_like(tokens_BT),
    }
    with torch.autocast("cpu", torch.bfloat16):
        causal = model(batch).hidden
        bidirectional = model(batch | {"bidirectional_B": torch.ones(2)}).hidden
    exact = model(batch | {"bidirectional_B": torch.ones(2)}).hidden
    assert torch.equal(causal[0, :-1], causal[1, :-1])
    assert not torch.equal(bidirectional[0, 0], bidirectional[1, 0])
    assert bidirectional.dtype == torch.float32
    assert (bidirectional - exact).abs().mean() < 0.03 * exact.abs().mean()


def test_memory_is_seen_but_no_gradient_reaches_it() -> None:
    model = model_of(**NETS)
    batch = rows(NLG, NLG)
    plain = gradient_of_tokens(model, batch, 0, 9)
    hidden = model(batch).hidden
    marked(batch, "memory_BT", 0, slice(0, 5), 1, 0)
    assert torch.equal(model(batch).hidden, hidden)
    found = gradient_of_tokens(model, batch, 0, 9)
    assert (plain[:10] > 0).all()
    assert (found[:5] == 0).all() and (found[5:10] > 0).all()
    changed = dict(batch, tokens_BT=batch["tokens_BT"].clone())
    changed["tokens_BT"][0, 2] = (changed["tokens_BT"][0, 2] + 1) % V
    assert not torch.equal(model(changed).hidden[0, 9], hidden[0, 9])


def test_keys_and_values_learn_from_memory() -> None:
    """With all tokens but the last one memory the weights' gradient still depends on them."""
    found = []
    for token in (3, 4):
        model = model_of(**NETS)
        batch = rows(NLG)
        batch["tokens_BT"][0, 0] = token
        marked(batch, "memory_BT", 0, slice(0, T - 1), 1, 0)
        model(batch).hidden[0, -1].pow(3).sum().backward()
        found.append(model.blocks[0].attention.value.weight.grad)
    assert not torch.equal(*found)


def test_a_soft_prompt_stands_in_the_place_of_a_tokens_embedding() -> None:
    model = model_of(**NETS)
    batch = rows(NLU, NLG)
    with torch.no_grad():
        model.prompts.weight[3] = model.embed.weight[7]
    written = dict(batch, tokens_BT=batch["tokens_BT"].clone())
    written["tokens_BT"][:, 1] = 7
    marked(batch, "prompts_BT", 0, slice(1, 2), 3, -1)
    marked(batch, "prompts_BT", 1, slice(1, 2), 3, -1)
    hidden = model(batch).hidden
    assert torch.equal(hidden, model(written).hidden)
    hidden.pow(3).sum().backward()
    assert [bool(row.any()) for row in model.prompts.weight.grad] == [False, False, False, True]


def test_rows_that_are_drawn_together_read_their_soft_prompts_as_one_alone_does() -> None:
    model, prompt, end = model_of(**NETS), [5, 9, 11, 4], V

    def together(soft: list[int] | None) -> list[list[int]]:
        return continuations(
            model, [prompt] * 2, length=T, temperatures_B=torch.zeros(2), top_p=1.0,
            draws=lambda place: torch.zeros(2), ends=[end], soft=soft,
        )  # fmt: skip

    how = Sampling(temperature=0.0, max_tokens=T - len(prompt))
    for soft in ([0, 2, -1, -1], [1, 3, -1, -1], None):
        assert together(soft) == [list(continuation(model, prompt, how, [end], soft))] * 2
    assert together([0, 2, -1, -1]) != together(None)


def test_soft_prompts_without_a_table_are_refused() -> None:
    batch = rows(NLG)
    marked(batch, "prompts_BT", 0, slice(0, 1), 0, -1)
    with pytest.raises(ConfigError, match=r"model\.prompts: is 0"):
        model_of(**BARE)(batch)


@BOTH
def test_decoding_with_a_cache_equals_one_forward(settings: dict[str, Any]) -> None:
    model = model_of(**settings)
    batch = rows(NLG, NLG)
    whole = model(batch).hidden
    del batch["bidirectional_B"]
    cache = model.new_cache(2, T, torch.float64)
    pieces, begin = [], 0
    for length in (5, 1, 1, 4, 1):
        piece = {name: value[:, begin : begin + length] for name, value in batch.items()}
        pieces.append(model(piece, cache).hidden)
        begin += length
    assert (torch.cat(pieces, dim=1) - whole).abs().max() < 1e-12


def test_bidirectional_rows_are_not_decoded() -> None:
    model = model_of(**NETS)
    with pytest.raises(ConfigError, match="bidirectional rows, but decodes causally"):
        model(rows(NLU), model.new_cache(1, T, torch.float64))


@BOTH
@pytest.mark.parametrize("kinds", [(NLU, NLU), (NLG,)], ids=["understanding", "generation"])
def test_what_no_row_reaches_has_gradients_of_0(settings: dict[str, Any], kinds: tuple[int, ...]) -> None:
    model = model_of(**settings)
    model(rows(*kinds)).hidden.pow(3).sum().backward()
    idle = ("classes", "pairs", "prompts", "nlg" if kinds[0] == NLU else "nlu")
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.any()) == (not name.startswith(idle)), name


def test_a_head_of_classes_reads_hidden_states_and_learns() -> None:
    model = model_of(**NETS)
    logits = model.class_logits(model(rows(NLU, NLU)).hidden[:, 0], "topic")
    assert logits.shape == (2, 5)
    logits.pow(3).sum().backward()
    assert model.classes["topic"].weight.grad.any() and not model.classes["normal"].weight.grad.any()


def test_dropout_differs_in_universal_blocks_and_nets_and_is_the_same_for_a_row_anywhere() -> None:
    model = model_of(**NETS | {"dropout": 0.5})
    batch = rows(NLU, NLG, NLU)
    batch["noise_BT"] = torch.randint(0, 2**60, (3, T), generator=torch.Generator().manual_seed(2))
    together = model(batch).hidden
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in batch.items()}
        assert (model(alone).hidden[0] - together[row]).abs().max() < 1e-12
    model.eval()
    assert not torch.equal(model(batch).hidden, together)


@BOTH
def test_weights_have_the_names_shapes_and_count_of_the_spec(settings: dict[str, Any]) -> None:
    spec = Ernie(**settings)
    with torch.device("meta"):
        model = build(spec)
    assert {name: tuple(weight.shape) for name, weight in model.named_parameters()} == spec.shapes()
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]  # no buffers
    assert sum(weight.numel() for weight in model.parameters()) == spec.num_params()


def test_weights_begin_as_their_places_say() -> None:
    model = model_of(**NETS)
    assert model.nlg.norm.weight.eq(1).all() and model.nlg.norm.bias.eq(0).all()
    assert model.classes["normal"].weight.std() > 0
    assert model.pairs["topic"]["end"].weight.std() > 0
    assert model.initial("nlg.blocks.1.mlp.down.weight") == ("normal", 0.2 * 4**-0.5)
    assert model.initial("nlu.blocks.0.mlp.down.weight") == ("normal", 0.2 * 2**-0.5)
    assert model.initial("nlu.leave.weight") == ("normal", 0.2 * 4**-0.5)
    assert model.initial("nlu.norm_inside.bias") == ("zeros", 0.0)


def test_a_head_whose_name_a_module_cannot_have_is_refused() -> None:
    for field in ("classes", "pairs"):
        with pytest.raises(ConfigError, match=rf"model\.{field}: train cannot be the name of a head"):
            build(Ernie(**NETS | {field: {"train": 2}}))


def test_low_rank_additions_go_into_the_nets_too() -> None:
    model = model_of(**NETS)
    apply(model, Trainable(kind="lora", rank=2, targets=("query",)), seed=1, name="test")
    moved = {name for name, weight in model.named_parameters() if weight.requires_grad}
    owners = ("blocks.0", "blocks.1", "nlu.blocks.0", "nlg.blocks.0", "nlg.blocks.1")
    assert moved == {f"{owner}.attention.query.lora_{kind}.weight" for owner in owners for kind in "AB"}


def test_a_causal_model_refuses_bidirectional_rows() -> None:
    causal = build(GPT(num_layers=1, hidden=16, num_heads=2, vocab=V))
    with pytest.raises(ConfigError, match="gets bidirectional rows, but is causal"):
        causal(rows(NLU))
