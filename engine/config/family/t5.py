"""T5 and T5 1.1: an encoder and a decoder. Version 1.1 has a head of its own and does not scale what it
reads; transformers 5 says so by `scale_decoder_outputs` and leaves tie_word_embeddings true.
"""

from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.families import Config, Family, Fields, Key, Part, flag
from atelier.engine.config.model.encdec import SIDES, EncDec
from atelier.engine.config.registry import ModelSpec

MLPS = {
    "gated-gelu": "geglu", "gated-gelu_new": "geglu", "gated-relu": "reglu", "gated-silu": "swiglu",
    "relu": "relu", "gelu": "gelu_exact", "gelu_new": "gelu", "silu": "silu",
}  # fmt: skip
WRITTEN = {kind: name for name, kind in reversed(MLPS.items())}


def _said(config: Config) -> tuple[Fields, set[str]]:
    layers = config.get("num_decoder_layers")
    start, pad = config.get("decoder_start_token_id"), config.get("pad_token_id", 0)
    if start is not None and start != pad:
        raise ConfigError("decoder_start_token_id", f"is {start}, and the decoder begins with padding, {pad}")
    tied = flag(config.get("tie_word_embeddings", True))
    scaled = flag(config.get("scale_decoder_outputs", tied))
    if scaled and not tied:
        raise ConfigError("scale_decoder_outputs", "is true, but the head is one of its own")
    fields: Fields = {"tied": scaled, "num_layers": config.get("num_layers", 6) if layers is None else layers}
    names = {"num_decoder_layers", "decoder_start_token_id", "tie_word_embeddings", "scale_decoder_outputs"}
    return fields, names


def _written(spec: ModelSpec) -> dict[str, Json]:
    assert isinstance(spec, EncDec)
    name = WRITTEN.get(spec.mlp, "")
    return {
        "num_decoder_layers": spec.num_layers,
        "tie_word_embeddings": spec.tied,
        "scale_decoder_outputs": spec.tied,
        "is_encoder_decoder": True,
        "is_gated_act": spec.has_gate,
        "dense_act_fn": "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-"),
        "dropout_rate": spec.dropout,
        "initializer_factor": spec.init_std,
    }


def _renamed(ours: str, spec: ModelSpec) -> str:
    """A weight of a block by its side and its number there; what has no gate beside it by another name."""
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
        Key(
            "feed_forward_proj",
            "mlp",
            "relu",
            lambda name: MLPS[str(name)],
            lambda kind: WRITTEN.get(str(kind), ""),
        ),
    ),
    weights=_weights(),
    also=(_said,),
    back=_written,
    neutral={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    idle=(
        "classifier_dropout", "dense_act_fn", "dropout_rate", "gradient_checkpointing", "initializer_factor",
        "is_gated_act", "n_positions",
    ),
    renamed=_renamed,
    copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
    extra=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
)  # fmt: skip
