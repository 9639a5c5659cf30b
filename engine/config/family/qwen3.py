"""Qwen 3 (2505.09388), dense: with a norm on each head's queries and keys."""

from atelier.engine.config.family import _llama as like
from atelier.engine.config.foreign.families import Family

FAMILY = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    keys=like.keys(1e-6, 32768),
    weights=like.weights(),
    also=(like.heads(128), like.biases(), like.some_windows, like.rope),
    back=lambda spec: {
        "attention_bias": "qkv" in spec.bias,
        **like.written_heads(spec),
        **like.written_windows(spec),
        **like.written_rope(spec),
    },
    fixed={"qk_norm": True},
    extra=like.EXTRA,
)
