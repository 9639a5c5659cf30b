"""T5 and T5 1.1: an encoder and a decoder. Version 1.1 has a separate head and does not scale the head's
input; transformers 5 marks it by `scale_decoder_outputs` and leaves tie_word_embeddings true.
"""

from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.foreign.config_keys import Config, Fields, Key, flag, given
from atelier.engine.config.foreign.families import Family, Part
from atelier.engine.config.foreign.idle_keys import OFF, TRAINING, Idle
from atelier.engine.config.model.encdec import SIDES, EncDec
from atelier.engine.config.registry import ModelSpec

GATED = {
    "gelu_new": "geglu", "gelu_pytorch_tanh": "geglu", "gelu": "geglu_exact", "relu": "reglu",
    "silu": "swiglu", "swish": "swiglu",
}  # fmt: skip
PLAIN = {
    "relu": "relu", "gelu": "gelu_exact", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
PROJECTION = "feed_forward_proj"


def _mlp(config: Config) -> Fields:
    """`feed_forward_proj` (an activation, or gated- and an activation). dense_act_fn and is_gated_act
    override it.
    """
    word = str(given(config, PROJECTION, "relu", str))
    gate, _, name = word.rpartition("-")
    if gate not in ("", "gated") or name not in PLAIN:
        raise ConfigError(PROJECTION, f"{word!r} is not understood")
    act = str(given(config, "dense_act_fn", "gelu_new" if word == "gated-gelu" else name, str))
    if act not in PLAIN:
        raise ConfigError("dense_act_fn", f"{act!r} is not understood")
    return {"mlp": (GATED if given(config, "is_gated_act", bool(gate), flag) else PLAIN)[act]}


def _version(config: Config) -> int:
    """2 if another key than feed_forward_proj gives the activation: version 1 did not read those."""
    alone = {name: value for name, value in config.items() if name not in ("dense_act_fn", "is_gated_act")}
    return 1 if _mlp(config) == _mlp(alone) else 2


def _written_mlp(spec: EncDec) -> dict[str, Json]:
    known = GATED if spec.has_gate else PLAIN
    act = next((name for name, kind in known.items() if kind == spec.mlp), "")
    if not act:
        raise ConfigError("--family", f"t5 cannot express mlp {spec.mlp}", "choose another family")
    name = "gelu" if act == "gelu_new" and spec.has_gate else act
    return {
        PROJECTION: f"gated-{name}" if spec.has_gate else act,
        "is_gated_act": spec.has_gate,
        "dense_act_fn": act,
    }


def _said(config: Config) -> Fields:
    layers, both = given(config, "num_decoder_layers"), given(config, "num_layers", 6)
    start, pad = given(config, "decoder_start_token_id"), config.get("pad_token_id", 0)
    pad = None if pad is None else given(config, "pad_token_id", 0)
    if start is not None and start != pad:
        raise ConfigError("decoder_start_token_id", f"is {start}, but the decoder starts with padding, {pad}")
    tied = given(config, "tie_word_embeddings", True, flag)
    scaled = given(config, "scale_decoder_outputs", tied, flag)
    if scaled and not tied:
        raise ConfigError("scale_decoder_outputs", "is true, but the model has a separate head")
    return {"tied": scaled, "num_layers": both if layers is None else layers}


def _written(spec: ModelSpec) -> dict[str, Json]:
    assert isinstance(spec, EncDec)
    return {
        "num_decoder_layers": spec.num_layers,
        "tie_word_embeddings": spec.tied,
        "scale_decoder_outputs": spec.tied,
        "is_encoder_decoder": True,
        **_written_mlp(spec),
        "dropout_rate": spec.dropout,
        "initializer_factor": spec.init_std,
    }


def _renamed(ours: str, spec: ModelSpec) -> str:
    """The name of a block's weight: its side, its number there, and another name for MLPs without a gate."""
    if not ours.startswith("blocks."):
        return ours
    asked = cast(EncDec, spec)
    _, number, rest = ours.split(".", 2)
    rest = rest if asked.has_gate else rest.replace("mlp.up", "mlp.alone")
    is_first = int(number) < asked.num_encoding
    return f"encoder.{number}.{rest}" if is_first else f"decoder.{int(number) - asked.num_encoding}.{rest}"


def _weights() -> dict[str, Part]:
    found = {
        "embed.weight": Part("shared.weight"),
        "head.weight": Part("lm_head.weight"),
        "norm.weight": Part("decoder.final_layer_norm.weight"),
        "encoder.{i}.norm.weight": Part("encoder.final_layer_norm.weight"),
    }
    for side in SIDES:
        block = f"{side}.block.{{i}}.layer."
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found[f"bias.{side}.weight"] = Part(bias, turned=True)
        parts = {"norm1": (0, "attention", "SelfAttention"), "norm2": (1 if side == "encoder" else 2, "", "")}
        if side == "decoder":
            parts["norm3"] = (1, "cross", "EncDecAttention")
        for norm, (place, ours, theirs) in parts.items():
            found[f"{side}.{{i}}.{norm}.weight"] = Part(f"{block}{place}.layer_norm.weight")
            for name in ("query", "key", "value", "out") if ours else ():
                found[f"{side}.{{i}}.{ours}.{name}.weight"] = Part(
                    f"{block}{place}.{theirs}.{name[0]}.weight"
                )
        place = parts["norm2"][0]
        for ours, theirs in (("gate", "wi_0"), ("up", "wi_1"), ("alone", "wi"), ("down", "wo")):
            found[f"{side}.{{i}}.mlp.{ours}.weight"] = Part(f"{block}{place}.DenseReluDense.{theirs}.weight")
    return found


FAMILY = Family(
    name="t5",
    architecture="T5ForConditionalGeneration",
    model=EncDec,
    keys=(
        Key("num_layers", "encoder_layers", 6),
        Key("d_model", "hidden", 512),
        Key("d_kv", "head_dim", 64),
        Key("d_ff", "ffn", 2048),
        Key("num_heads", "num_heads", 8),
        Key("vocab_size", "vocab", 32128),
        Key("relative_attention_num_buckets", "buckets", 32),
        Key("relative_attention_max_distance", "max_distance", 128),
        Key("layer_norm_epsilon", "norm_eps", 1e-6),
    ),
    weights=_weights(),
    also=(_said, _mlp),
    version=_version,
    back=_written,
    beside=(
        Idle("the model has an encoder and a decoder", ("is_encoder_decoder",), (True,)),
        Idle(OFF, ("is_decoder",), (False,)),
        Idle(TRAINING, ("classifier_dropout", "dropout_rate", "initializer_factor")),
        Idle("positions are relative, without a limit", ("n_positions",)),
    ),
    renamed=_renamed,
    copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    extra=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)  # fmt: skip
