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
    "Ernie": {
        "num_kv_heads": "auto",
        "ffn": "auto",
        "mlp": "gelu",
        "rope_theta": 10000.0,
        "norm": "layer",
        "norm_eps": 1e-5,
        "dropout": 0.0,
        "init_std": 0.02,
        "vocab": "auto",
        "nlu": {},
        "nlg": {},
        "classes": {},
        "prompts": 0,
    },
    "Net": {"num_layers": 0, "hidden": "auto", "num_heads": "auto", "ffn": "auto"},
    "LM": {"weight": 1.0},
    "Logits": {"weight": 0.5, "temperature": 1.0},
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
    "Source": {"field": "text", "on_error": "stop"},
    "Labels": {
        "task": "package",
        "prompt": "prompt",
        "completion": "completion",
        "on_error": "stop",
        "max_chars": 400,
    },
}
