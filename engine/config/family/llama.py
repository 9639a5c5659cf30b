"""Llama 1 to 3 (2302.13971, 2407.21783)."""

from atelier.engine.config.family import _llama as like
from atelier.engine.config.foreign.families import Family
from atelier.engine.config.foreign.idle_keys import SPEED, Idle

FAMILY = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    keys=like.keys(1e-6, 2048),
    weights=like.weights(),
    also=(like.heads(None), like.biases(mlp=True), like.no_window, like.rope),
    back=lambda spec: {
        "attention_bias": "qkv" in spec.bias,
        "mlp_bias": "mlp" in spec.bias,
        "pretraining_tp": 1,
        **like.written_heads(spec),
        **like.written_rope(spec),
    },
    beside=(Idle(SPEED, ("pretraining_tp",)),),
    extra=like.EXTRA,
)
