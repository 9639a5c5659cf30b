"""The encoder and decoder against transformers' T5; which tokens see which; counts of CPM-2."""

from typing import Any

import pytest
import torch
from torch import Tensor

from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.model.encdec import EncoderDecoder
from atelier.engine.model.load import build, initialise

V = 61
SMALL: dict[str, Any] = {
    "num_layers": 2, "encoder_layers": 3, "hidden": 32, "num_heads": 4, "head_dim": 12, "ffn": 48, "vocab": V,
    "buckets": 8, "max_distance": 20,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "experts_per_token": 1, "experts": {"every": 2}}


def model_of(**fields: Any) -> EncoderDecoder:
    model = build(EncDec(**(SMALL | fields))).double()
    initialise(model, seed=1, name="test")
    assert isinstance(model, EncoderDecoder)
    return model.eval()


def rows(encoder: list[int], decoder: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Random tokens: of each row how many the sides have, the rest padding."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for prefix, dim, sizes in (("", "T", decoder), ("encoder_", "U", encoder)):
        shape = (len(sizes), max(1, *sizes))
        places = torch.arange(shape[1])
        found[f"{prefix}tokens_B{dim}"] = torch.randint(0, V, shape, generator=generator)
        found[f"{prefix}positions_B{dim}"] = places.expand(shape)
        found[f"{prefix}documents_B{dim}"] = torch.where(places < torch.tensor(sizes)[:, None], 0, -1)
    return found


@torch.inference_mode()
def logits(model: EncoderDecoder, batch: dict[str, Tensor], cache: Any = None) -> Tensor:
    return model(batch, cache).hidden @ model.head_weight.T


CASES: dict[str, dict[str, Any]] = {
    "1.1": {"mlp": "geglu", "tied": False},
    "tied, of 1.0": {"mlp": "relu", "tied": True},
    "gated relu": {"mlp": "reglu", "tied": False, "norm_eps": 1e-3},
}


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_t5_of_transformers_computes(case: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    spec = EncDec(**(SMALL | CASES[case]))
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=V, d_model=32, d_kv=12, d_ff=48, num_layers=3, num_decoder_layers=2, num_heads=4,
            relative_attention_num_buckets=8, relative_attention_max_distance=20,
            layer_norm_epsilon=spec.norm_eps, tie_word_embeddings=spec.tied,
            feed_forward_proj={"geglu": "gated-gelu", "relu": "relu", "reglu": "gated-relu"}[spec.mlp],
        )
    ).double().eval()  # fmt: skip
    if not spec.tied:  # this version of transformers ties what it builds, whatever it is told
        theirs.lm_head.weight = torch.nn.Parameter(torch.zeros(V, 32, dtype=torch.float64))
    with torch.no_grad():
        for weight in theirs.parameters():
            is_norm = weight.dim() == 1
            weight.copy_(torch.randn_like(weight) * (0.3 if is_norm else weight.shape[1] ** -0.5) + is_norm)
    model = model_of(**CASES[case])
    state = {name: theirs.state_dict()[foreign(name, spec)] for name in spec.shapes()}
    state |= {name: weight.T for name, weight in state.items() if name.startswith("bias.")}
    model.load_state_dict(state)
    batch = rows([37, 25], [29, 18])
    with torch.inference_mode():
        wanted = theirs(
            input_ids=batch["encoder_tokens_BU"],
            attention_mask=(batch["encoder_documents_BU"] >= 0).long(),
            decoder_input_ids=batch["tokens_BT"],
        ).logits
    is_text_BT = batch["documents_BT"] >= 0
    apart = (logits(model, batch) - wanted)[is_text_BT].abs().max() / wanted.std()
    print(f"{case}: {apart:.1e} of the logits' scale")
    assert apart < 1e-5


def foreign(name: str, spec: EncDec) -> str:
    """T5's name of a weight."""
    parts = name.split(".")
    if name in ("embed.weight", "head.weight"):
        return "shared.weight" if parts[0] == "embed" else "lm_head.weight"
    if name == "norm.weight":
        return "decoder.final_layer_norm.weight"
    if parts[0] == "bias":
        return f"{parts[1]}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    number, what = int(parts[1]), ".".join(parts[2:-1])
    if what == "norm":
        return "encoder.final_layer_norm.weight"
    side = "encoder" if number < spec.num_encoding else "decoder"
    block = f"{side}.block.{number - (side == 'decoder') * spec.num_encoding}.layer."
    mlp = 1 if side == "encoder" else 2
    leaf = what.split(".")[-1]
    if what.startswith("norm"):
        return block + {"norm1": "0", "norm3": "1", "norm2": str(mlp)}[what] + ".layer_norm.weight"
    if what.startswith("mlp"):
        names = {"gate": "wi_0", "up": "wi_1" if spec.has_gate else "wi", "down": "wo"}
        return f"{block}{mlp}.DenseReluDense.{names[leaf]}.weight"
    kind = "0.SelfAttention" if what.startswith("attention") else "1.EncDecAttention"
    return f"{block}{kind}.{leaf[0]}.weight"


def test_a_token_that_padding_or_another_document_is_added_to_computes_the_same() -> None:
    model = model_of()
    one, both = rows([20], [15]), rows([20, 9], [15, 30])
    for name in one:
        both[name][0, : one[name].shape[1]] = one[name][0]
    assert torch.allclose(logits(model, one)[0], logits(model, both)[0, :15], atol=1e-12)


def test_a_row_without_an_input_for_the_encoder_is_that_of_a_batch_without_any() -> None:
    model, batch = model_of(), rows([0], [15])
    alone = {name: values for name, values in batch.items() if not name.startswith("encoder")}
    found = logits(model, batch)
    assert torch.isfinite(found).all() and torch.equal(found, logits(model, alone))
    read = batch | {"encoder_documents_BU": torch.zeros_like(batch["encoder_documents_BU"])}
    assert not torch.allclose(found, logits(model, read))


def test_what_is_decoded_token_by_token_is_what_is_computed_at_once() -> None:
    model, batch = model_of(), rows([20, 13], [24, 24])
    cache, found = model.new_cache(2, 24, torch.float64), []
    for begin, end in ((0, 3), *((at, at + 1) for at in range(3, 24))):
        some = {name: values[:, begin:end] for name, values in batch.items() if name.endswith("T")}
        more = {name: values for name, values in batch.items() if name.endswith("U")} if not begin else {}
        found.append(logits(model, some | more, cache))
    assert torch.allclose(torch.cat(found, 1), logits(model, batch), atol=1e-12)


def test_the_counts_are_those_of_cpm_2() -> None:
    large: dict[str, Any] = {"num_layers": 24, "hidden": 4096, "num_heads": 64, "head_dim": 64, "ffn": 10240}
    experts = EXPERTS | {"num_experts": 32, "experts": {"router": {"kind": "base"}}}
    found = [
        EncDec(**(large | more)).num_params() / 1e9
        for more in ({"vocab": 26240}, {"vocab": 51967}, {"vocab": 51967} | experts)
    ]
    assert found == pytest.approx([11.09, 11.30, 198.54], abs=0.005)


@pytest.mark.parametrize("more", [{}, {"tied": True, "norm": "layer", "mlp": "relu"}, EXPERTS])
def test_the_module_has_the_weights_of_its_spec(more: dict[str, Any]) -> None:
    spec = EncDec(**(SMALL | more))
    with torch.device("meta"):
        model = build(spec)
    assert {name: tuple(weight.shape) for name, weight in model.state_dict().items()} == spec.shapes()
    assert sum(weight.numel() for weight in model.parameters()) == spec.num_params()


def test_a_prompt_of_cpm_2_has_the_published_number_of_weights() -> None:
    """2106.10715: 100 vectors are 409.6 thousand weights, 0.0037 % of 11 billion."""
    large: dict[str, Any] = {"num_layers": 24, "hidden": 4096, "num_heads": 64, "head_dim": 64, "ffn": 10240}
    bare = EncDec(**large, vocab=26240)
    tuned = EncDec(**large, vocab=26240, soft_prompt=SoftPrompt(length=100))
    learned = tuned.num_params() - bare.num_params()
    assert learned == 409_600 and 100 * learned / bare.num_params() == pytest.approx(0.0037, abs=5e-5)


@pytest.mark.parametrize("mask", ["none", "prompt_to_text", "text_to_prompt", "both"])
def test_a_mask_hides_the_prompt_and_the_text_from_each_other_in_the_encoder(mask: Any) -> None:
    """Which states of the last encoder block change with a token of the text, and with a vector."""
    model, batch = model_of(soft_prompt=SoftPrompt(length=3, mask=mask)), rows([9], [4])
    batch["encoder_tokens_BU"][0, 3:6] = torch.tensor([V, V + 1, V + 2])
    is_soft_U = batch["encoder_tokens_BU"][0] >= V

    def states() -> Tensor:
        with torch.inference_mode():
            return model.through(model.enter(batch), model.shared(batch))[0]["memory_BUD"][0]

    before = states()
    with torch.no_grad():
        model.soft.weight[1] += 1
    of_vector = (states() != before).any(-1)
    with torch.no_grad():
        model.soft.weight[1] -= 1
    batch["encoder_tokens_BU"][0, 0] = (batch["encoder_tokens_BU"][0, 0] + 1) % V
    of_text = (states() != before).any(-1)
    assert of_vector[is_soft_U].all() and of_text[~is_soft_U].all()
    assert of_vector[~is_soft_U].any() == (mask in ("none", "prompt_to_text"))
    assert of_text[is_soft_U].any() == (mask in ("none", "text_to_prompt"))


def test_dropout_is_a_function_of_the_keys_of_each_side() -> None:
    model, batch = model_of(dropout=0.3).train(), rows([20], [15])
    keyed = batch | {"noise_BT": batch["positions_BT"] + 7, "encoder_noise_BU": batch["encoder_positions_BU"]}
    plain, first, other = logits(model, batch), logits(model, keyed), logits(model, keyed)
    assert torch.equal(first, other) and not torch.allclose(plain, first)
    again = keyed | {"encoder_noise_BU": keyed["encoder_noise_BU"] + 1}
    assert not torch.allclose(first, logits(model, again))
    model.set_dropout(0.0)
    assert torch.equal(logits(model, keyed), plain)
