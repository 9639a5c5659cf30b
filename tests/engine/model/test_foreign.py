"""Conversion of checkpoints from transformers and back: logits, greedy text and bits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import AtelierError, ConfigError, DataError
from atelier.engine.config.foreign.families import Family, Said, difference, families, family_of, fitting
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.contract import Model
from atelier.engine.model.foreign import adopted, exported
from atelier.engine.model.load import build
from atelier.engine.model.weights import StoredWeights, in_memory

transformers = pytest.importorskip("transformers")

SMALL: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "rms_norm_eps": 1e-4,
}  # fmt: skip
ROPE = {"rope_theta": 5000.0}
LINEAR = ROPE | {"rope_type": "linear", "factor": 4.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5, "high_freq_factor": 5.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = ROPE | {
    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
    "beta_slow": 2.0, "attention_factor": 1.2,
}  # fmt: skip
MSCALE = ROPE | {
    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "mscale": 0.7,
    "mscale_all_dim": 0.4,
}  # fmt: skip
KINDS = ["full_attention", "sliding_attention"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "head_dim": 24}
GPT2 = {"vocab_size": 300, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 600}
T5 = {
    "vocab_size": 300, "d_model": 64, "d_kv": 24, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 2,
    "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 40,
    "layer_norm_epsilon": 1e-5,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SMALL | {"rope_parameters": ROPE}),
    "llama tied": ("Llama", SMALL | {"tie_word_embeddings": True, "head_dim": 24}),
    "llama biases": ("Llama", SMALL | {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"}),
    "llama linear": ("Llama", SMALL | {"rope_parameters": LINEAR, "hidden_act": "gelu_pytorch_tanh"}),
    "llama 3.1": ("Llama", SMALL | {"rope_parameters": LLAMA3}),
    "llama yarn": ("Llama", SMALL | {"rope_parameters": YARN, "hidden_act": "relu"}),
    "qwen2 mscale": ("Qwen2", SMALL | {"rope_parameters": MSCALE}),
    "mistral": ("Mistral", SMALL | {"sliding_window": 33}),
    "mistral whole": ("Mistral", SMALL | {"sliding_window": None}),
    "qwen2": ("Qwen2", SMALL | {"rope_parameters": ROPE, "tie_word_embeddings": True}),
    "qwen2 window": (
        "Qwen2",
        SMALL | {"use_sliding_window": True, "sliding_window": 33, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 24, "rope_parameters": ROPE}),
    "qwen3 bias": (
        "Qwen3",
        SMALL
        | {"attention_bias": True, "use_sliding_window": True, "sliding_window": 40, "layer_types": KINDS},
    ),
    "mixtral": ("Mixtral", SMALL | {"num_local_experts": 4, "sliding_window": 50}),
    "mixtral gelu": ("Mixtral", SMALL | {"num_local_experts": 4, "hidden_act": "gelu"}),
    "qwen3 experts": ("Qwen3Moe", SMALL | EXPERTS | {"norm_topk_prob": True}),
    "qwen3 experts, not normed": ("Qwen3Moe", SMALL | EXPERTS | {"decoder_sparse_step": 2}),
    "gpt2": ("GPT2", GPT2),
    "t5": ("T5", T5),
    "t5 1.1": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 activation": ("T5", T5 | {"dense_act_fn": "gelu"}),
    "t5 exact": ("T5", T5 | {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}),
    "t5 gated": ("T5", T5 | {"feed_forward_proj": "gated-silu", "num_decoder_layers": None}),
    "gpt2 untied": (
        "GPT2",
        GPT2 | {"n_inner": 80, "activation_function": "gelu", "tie_word_embeddings": False},
    ),
}  # fmt: skip


def auto(kind: str) -> Any:
    """What transformers loads a model of a kind with."""
    return transformers.AutoModelForSeq2SeqLM if kind == "T5" else transformers.AutoModelForCausalLM


READ = torch.arange(40)[None] * 7  # of an encoder


class Checkpoint:
    """A random one, its norms and biases too, in shards, as transformers writes it."""

    def __init__(self, folder: Path, kind: str, fields: dict[str, Any]) -> None:
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**fields)
        self.theirs = auto(kind).from_config(config, attn_implementation="eager").eval()
        if kind == "T5" and not config.scale_decoder_outputs:  # transformers ties what it builds
            self.theirs.lm_head.weight = torch.nn.Parameter(torch.randn(300, 64) / 8)
        with torch.no_grad():
            for name, weight in self.theirs.named_parameters():
                weight.add_(torch.randn_like(weight) * (0.3 if "norm" in name or "bias" in name else 0.05))
        self.folder = folder / "checkpoint"
        self.theirs.save_pretrained(self.folder, max_shard_size="100KB")
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        self.stored = StoredWeights(*sorted(self.folder.glob("*.safetensors")))

    @property
    def family(self) -> Family:
        return family_of(self.config, "config.json")

    def ours(self) -> Model:
        spec = self.family.spec(self.config, "config.json")
        model = build(spec)
        weights = adopted(self.stored, self.family, spec, "checkpoint")
        model.load_state_dict({name: weight.gather() for name, weight in weights.items()})
        return model.eval()


@torch.inference_mode()
def logits(model: Model, ids_BT: Tensor) -> Tensor:
    places_BT = torch.arange(ids_BT.shape[1]).expand(ids_BT.shape)
    batch = {"tokens_BT": ids_BT, "positions_BT": places_BT, "documents_BT": torch.zeros_like(ids_BT)}
    if model.spec.reads_encoder:
        batch |= dict(zip(ENCODER, (READ, torch.arange(40)[None], torch.zeros_like(READ)), strict=True))
    return model(batch).hidden @ model.head_weight.T


@torch.inference_mode()
def greedy(next_logits: Callable[[Tensor], Tensor], ids_BT: Tensor, count: int) -> list[int]:
    for _ in range(count):
        ids_BT = torch.cat([ids_BT, next_logits(ids_BT)[:, -1:].argmax(-1)], dim=1)
    return ids_BT[0].tolist()


def apart(one: Tensor, other: Tensor) -> float:
    """Largest distance, in units of the logits' scale."""
    return float((one - other).abs().max() / other.std())


@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_transformers_computes_the_same_here_and_comes_back(
    case: str, tmp_path: Path
) -> None:
    made = Checkpoint(tmp_path, *CASES[case])
    model, ids_BT = made.ours(), torch.randint(300, (1, 160))
    assert isinstance(model.spec, Said)

    def forward(net: Any, ids_BT: Tensor) -> Tensor:
        read = {"input_ids": READ, "decoder_input_ids": ids_BT}
        return net(**read).logits if isinstance(model.spec, EncDec) else net(ids_BT).logits

    with torch.inference_mode():
        wanted = forward(made.theirs, ids_BT)
    distance = apart(logits(model, ids_BT), wanted)
    print(f"{case}: logits of {ids_BT.shape[1]} tokens {distance:.1e} of their scale apart")
    assert distance < 1e-5
    assert greedy(lambda ids: logits(model, ids), ids_BT[:, :40], 12) == greedy(
        lambda ids: forward(made.theirs, ids), ids_BT[:, :40], 12
    )
    back = exported(in_memory(dict(model.state_dict())), made.family, model.spec)
    assert {*back} == {*made.stored}
    for name, weight in back.items():
        whole = weight.gather()
        assert whole is not None and tuple(whole.shape) == weight.shape
        assert torch.equal(whole, made.stored[name]), name
    folder = tmp_path / "exported"
    folder.mkdir()
    save_file({name: made.stored[name] for name in back}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(made.family.config(model.spec)))
    theirs = auto(CASES[case][0]).from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        assert torch.equal(forward(theirs, ids_BT), wanted)
    assert made.family.name in [family.name for family in fitting(model.spec)]


def saved(case: str, tmp_path: Path) -> tuple[Family, dict[str, Any]]:
    """The config as transformers writes it."""
    kind, fields = CASES[case]
    getattr(transformers, f"{kind}Config")(**fields).save_pretrained(tmp_path)
    config: dict[str, Any] = json.loads((tmp_path / "config.json").read_text())
    return family_of(config, "config.json"), config


@pytest.mark.parametrize("case", CASES)
def test_no_key_of_a_config_is_left_out_in_silence(case: str, tmp_path: Path) -> None:
    """Without it the model is another one or is refused, or it means what its absence means. A key that
    nobody knows is refused.
    """
    family, config = saved(case, tmp_path)
    spec = family.spec(config, "config.json")
    assert not difference(spec, family.spec(family.config(spec), "again"))
    usual = type(transformers.AutoConfig.for_model(family.name))().to_dict()
    for name in config:
        left = {key: value for key, value in config.items() if key != name}
        try:
            other = family.spec(left, "config.json")
        except ConfigError:
            continue
        idle = family.reading(config, "config.json").idle
        if name in ("architectures", "model_type", *idle) or config[name] == usual.get(name):
            assert not difference(spec, other), name
        else:
            assert difference(spec, other) or name in MEANT, name
    with pytest.raises(ConfigError, match=r"config.json: added: 1: unknown key of the family"):
        family.spec(config | {"added": 1}, "config.json")


# keys whose absence means what was said here: as wide as the heads share it out, as the other keys have it
MEANT = (
    "dense_act_fn",
    "feed_forward_proj",
    "is_gated_act",
    "head_dim",
    "layer_types",
    "max_window_layers",
    "n_inner",
    "num_decoder_layers",
    "sliding_window",
    "max_position_embeddings",
)


@pytest.mark.parametrize(
    "case", ["llama biases", "qwen3", "mixtral", "qwen3 experts", "gpt2", "llama tied", "t5", "t5 1.1"]
)
def test_no_weight_is_left_out_in_silence(case: str, tmp_path: Path) -> None:
    made = Checkpoint(tmp_path, *CASES[case])
    spec = made.family.spec(made.config, "config.json")
    for name in made.stored:
        left = {other: made.stored[other] for other in made.stored if other != name}
        with pytest.raises(DataError, match=f"{name} is missing"):
            adopted(stored(tmp_path, left), made.family, spec, "checkpoint")
    more = {other: made.stored[other] for other in made.stored}
    faults: dict[str, tuple[dict[str, Tensor], str]] = {
        "added": ({"model.added.weight": torch.zeros(2)}, "unknown weight of the family"),
        "shape": ({name: torch.zeros(3, 5)}, f"{name} is .*3, 5.*; config.json implies"),
        "type": (
            {name: torch.zeros(made.stored[name].shape, dtype=torch.int8)},
            f"{name} is of type I8",
        ),
    }
    if spec.tied:
        head = "lm_head.weight"
        assert adopted(stored(tmp_path, more | {head: embedding(made)}), made.family, spec, "checkpoint")
        faults["tied"] = ({head: embedding(made) + 1}, "is tied to .* but has other values")
    for fault, words in faults.values():
        with pytest.raises(DataError, match=words):
            adopted(stored(tmp_path, more | fault), made.family, spec, "checkpoint")
    spoilt = more[name].clone()
    spoilt.view(-1)[-1] = float("nan")
    weights = adopted(stored(tmp_path, more | {name: spoilt}), made.family, spec, "checkpoint")
    with pytest.raises(DataError, match=f"{name} has values that are not finite"):
        for weight in weights.values():
            weight.gather()


def embedding(made: Checkpoint) -> Tensor:
    part = made.family.foreign("embed.weight", GPT(num_layers=1, hidden=8, num_heads=1))
    assert part is not None
    return made.stored[part.name].clone()


def stored(folder: Path, tensors: dict[str, Tensor]) -> StoredWeights:
    path = folder / "changed.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return StoredWeights(path)


@pytest.mark.parametrize(
    "kind",
    [
        "Olmo2",
        "Gemma3Text",
        "Phi3",
        "GptOss",
        "DeepseekV3",
        "SmolLM3",
        "Cohere",
        "Granite",
        "Starcoder2",
        "Glm",
    ],
)
def test_another_family_is_refused_by_its_name(kind: str) -> None:
    config = getattr(transformers, f"{kind}Config")().to_dict()
    with pytest.raises(ConfigError, match=f"{config['model_type']}.* is not known"):
        family_of(config, "config.json")
    config["architectures"] = [f"{kind}ForCausalLM"]
    for name in families():  # called by a name that is known it is refused by what it has beside
        with pytest.raises(AtelierError):
            family_of({"model_type": name}, "").spec(config | {"model_type": name}, "config.json")


def test_a_t5_whose_decoder_does_not_begin_with_padding_or_that_is_scaled_untied_is_refused(
    tmp_path: Path,
) -> None:
    family, config = saved("t5 1.1", tmp_path)
    for faults, words in (
        ({"decoder_start_token_id": 5}, "decoder_start_token_id: is 5"),
        ({"tie_word_embeddings": False, "scale_decoder_outputs": True}, "scale_decoder_outputs: is true"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder: False is not understood"),
        ({"feed_forward_proj": "gated-tanh"}, "feed_forward_proj: 'gated-tanh' is not understood"),
    ):
        with pytest.raises(ConfigError, match=f"config.json: {words}"):
            family.spec(config | faults, "config.json")
    assert family.spec(config | {"decoder_start_token_id": 0}, "config.json") == family.spec(config, "")


def test_copies_of_t5s_embedding_have_to_be_copies(tmp_path: Path) -> None:
    made = Checkpoint(tmp_path, *CASES["t5 1.1"])
    spec = made.family.spec(made.config, "config.json")
    more = {other: made.stored[other] for other in made.stored}
    name = "encoder.embed_tokens.weight"
    assert adopted(stored(tmp_path, more | {name: embedding(made)}), made.family, spec, "checkpoint")
    with pytest.raises(DataError, match=f"{name} is tied to shared.weight.* but has other values"):
        adopted(stored(tmp_path, more | {name: embedding(made) + 1}), made.family, spec, "checkpoint")


def test_code_of_its_own_and_quantised_weights_are_refused(tmp_path: Path) -> None:
    family, config = saved("llama", tmp_path)
    for key, words in (("auto_map", "never run"), ("quantization_config", "quantised")):
        with pytest.raises(ConfigError, match=f"config.json: {key}: .*{words}"):
            family.spec(config | {key: {}}, "config.json")


def test_two_spellings_of_rope_have_to_agree(tmp_path: Path) -> None:
    family, config = saved("llama 3.1", tmp_path)
    older = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
    both = config | {"rope_theta": ROPE["rope_theta"], "rope_scaling": older}
    assert not difference(family.spec(both, "config.json"), family.spec(config, "config.json"))
    with pytest.raises(ConfigError, match="differs from rope_parameters"):
        family.spec(both | {"rope_theta": 1.0}, "config.json")


def test_a_model_that_no_family_can_say_has_none() -> None:
    shape = {"num_layers": 1, "hidden": 16, "num_heads": 2, "vocab": 10}
    assert [family.name for family in fitting(GPT(**shape, tied=False))] == ["llama", "mistral"]
    assert not [*fitting(GPT(**shape, qk_norm=True, positions="learned"))]
    [family] = [family for family in fitting(GPT(**shape, bias=("qkv",)))]
    with pytest.raises(ConfigError, match=r"--family: llama cannot express bias \['qkv'\]"):
        family_of({"model_type": "llama"}, "").config(GPT(**shape, bias=("qkv",)))
    assert family.name == "qwen2"
    with pytest.raises(ConfigError, match=r"--family: llama cannot express multipliers.logits 0.5"):
        family_of({"model_type": "llama"}, "").config(GPT(**shape, base_width=8))
    assert family_of({"model_type": "llama"}, "").config(GPT(**shape, base_width=16))


def test_a_t5_is_another_model_than_before_only_where_its_activation_was_not_read() -> None:
    family = family_of({"model_type": "t5"}, "")
    usual = {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}
    assert family.version({}) == family.version(usual) == 1
    assert family.version({"dense_act_fn": "gelu"}) == family.version(usual | {"dense_act_fn": "gelu"}) == 2
    assert family_of({"model_type": "llama"}, "").version({"hidden_act": "gelu"}) == 1
