"""Qwen 2 and 2.5 (2407.10671): queries, keys and values with a bias."""

from atelier.engine.config.family import _llama as like
from atelier.engine.config.foreign.families import Family

FAMILY = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    keys=like.keys(1e-6, 32768),
    weights=like.weights(),
    also=(like.heads(None), like.some_windows, like.rope),
    back=lambda spec: {
        **like.written_heads(spec),
        **like.written_windows(spec),
        **like.written_rope(spec),
    },
    fixed={"bias": ["qkv"]},
    extra=like.EXTRA,
)
