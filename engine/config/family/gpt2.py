"""GPT-2: learned positions, LayerNorm, biases everywhere. Matrices are stored with inputs first; queries,
keys and values are one matrix.
"""

from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.foreign.config_keys import Config, Fields, Key, flag, given
from atelier.engine.config.foreign.families import Family, Part
from atelier.engine.config.foreign.idle_keys import LENGTH, OFF, SPEED, TRAINING, Idle
from atelier.engine.config.model.gpt import GPT

ACTIVATIONS = {
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu": "gelu_exact", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
WRITTEN = {"gelu": "gelu_new", "gelu_exact": "gelu", "relu": "relu", "silu": "silu"}
BLOCK = "transformer.h.{i}."


def _width(config: Config) -> Fields:
    inner = given(config, "n_inner")
    return {"ffn": 4 * int(cast(int, given(config, "n_embd", 768))) if inner is None else inner}


def _written(spec: GPT) -> dict[str, Json]:
    return {
        "n_inner": spec.inner,
        "n_ctx": spec.max_positions,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop"), 0.0),
        "resid_pdrop": spec.dropout,
    }


def _weights() -> dict[str, Part]:
    found = {
        "embed.weight": Part("transformer.wte.weight"),
        "positions.weight": Part("transformer.wpe.weight"),
        "head.weight": Part("lm_head.weight"),
    }
    for leaf in ("weight", "bias"):
        found[f"norm.{leaf}"] = Part(f"transformer.ln_f.{leaf}")
        for number in (1, 2):
            found[f"blocks.{{i}}.norm{number}.{leaf}"] = Part(f"{BLOCK}ln_{number}.{leaf}")
        turned = leaf == "weight"
        for part, name in enumerate(("query", "key", "value")):
            found[f"blocks.{{i}}.attention.{name}.{leaf}"] = Part(
                f"{BLOCK}attn.c_attn.{leaf}", part, 3, turned
            )
        names = {"attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
        for ours, theirs in names.items():
            found[f"blocks.{{i}}.{ours}.{leaf}"] = Part(f"{BLOCK}{theirs}.{leaf}", turned=turned)
    return found


FAMILY = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    keys=(
        Key("n_layer", "num_layers", 12),
        Key("n_embd", "hidden", 768),
        Key("n_head", "num_heads", 12),
        Key("n_positions", "max_positions", 1024),
        Key("vocab_size", "vocab", 50257),
        Key("layer_norm_epsilon", "norm_eps", 1e-5),
        Key(
            "activation_function",
            "mlp",
            "gelu_new",
            lambda name: ACTIVATIONS[str(name)],
            lambda kind: WRITTEN.get(str(kind), ""),
        ),
        Key("tie_word_embeddings", "tied", True, flag),
    ),
    weights=_weights(),
    also=(_width,),
    back=_written,
    fixed={"bias": ["qkv", "out", "mlp"], "norm": "layer", "positions": "learned"},
    beside=(
        Idle("has the usual value", ("scale_attn_weights",), (True,)),
        Idle(OFF, ("scale_attn_by_inverse_layer_idx",), (False,)),
        Idle(SPEED, ("reorder_and_upcast_attn",)),
        Idle(TRAINING, ("attn_pdrop", "embd_pdrop", "resid_pdrop")),
        Idle(LENGTH, ("n_ctx",)),
        Idle("for heads of classes and choices", ("summary_*", "n_special", "predict_special_tokens")),
    ),
    optional="transformer.",
    extra=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
)  # fmt: skip
