"""Mistral (2310.06825): Llama with a sliding window."""

from atelier.engine.config.family import _llama as like
from atelier.engine.config.foreign.families import Family

FAMILY = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    keys=like.keys(1e-6, 131072),
    weights=like.weights(),
    also=(like.heads(None), like.window(4096), like.rope),
    back=lambda spec: {
        "sliding_window": spec.window or None,
        **like.written_heads(spec),
        **like.written_rope(spec),
    },
    extra=like.EXTRA,
)
