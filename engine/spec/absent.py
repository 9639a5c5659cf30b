"""What a field's absence from identity has always meant: class -> field -> value. Committed, tested, only
ever added to.

A field with its value from this table is left out of identity, so a new field invalidates nothing, and a
default that moves later changes nothing that was made before: the table keeps the old meaning.
"""

from typing import Any

ABSENT: dict[str, dict[str, Any]] = {
    "GPT": {
        "num_kv_heads": "auto",
        "ffn": "auto",
        "mlp": "swiglu",
        "num_experts": 0,
        "experts_per_token": 2,
        "positions": "rope",
        "max_positions": 2048,
        "rope_theta": 10000.0,
        "norm": "rms",
        "norm_eps": 1e-5,
        "tied": True,
        "dropout": 0.0,
        "init_std": 0.02,
        "vocab": "auto",
    },
    "LM": {"weight": 1.0},
    "Logits": {"weight": 0.5, "temperature": 1.0},
    "Attention": {"weight": 0.5, "relation_heads": "auto", "auxiliary": True},
    "Hidden": {"weight": 0.5},
    "MLM": {"weight": 1.0, "rows": 1.0, "rate": 0.15, "phrase_count": 20, "phrase_bits": 6.0},
    "DocumentLM": {"weight": 1.0, "rows": 1.0, "memory": "auto"},
    "Reorder": {"weight": 1.0, "rows": 1.0, "max_segments": 3},
    "Distance": {"weight": 1.0, "rows": 1.0},
    "Knowledge": {"weight": 1.0, "rows": 1.0, "rate": 0.15},
    "AdamW": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0},
    "Muon": {
        "matrix_lr": 0.02,
        "momentum": 0.95,
        "iterations": 5,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "clip": 1.0,
    },
    "Schedule": {"warmup": 0, "floor": 0.0},
    "Trainable": {
        "kind": "full",
        "rank": 8,
        "alpha": 16.0,
        "targets": ["query", "key", "value", "out", "gate", "up", "down"],
    },
    "Role": {
        "init": "",
        "trainable": {},
        "teacher": "",
        "start": 0,
        "end": 0,
        "period": 1,
        "gate": "open",
        "attach": "refuse",
        "seed_name": "",
    },
    "Train": {"precision": "bf16", "health": {}},
    "Health": {
        "nan": "skip",
        "spike": "off",
        "spike_sigmas": 6.0,
        "spike_nats": 0.5,
        "spike_norm": 0.0,
        "spike_after": 20,
        "pass_over": 10,
    },
    "Tokenizer": {"specials": []},
    "Source": {"field": "text", "on_error": "stop"},
    "Labels": {
        "task": "package",
        "prompt": "prompt",
        "completion": "completion",
        "on_error": "stop",
        "max_chars": 400,
    },
}
