"""Draw configurations of small foreign models: a family's keys, keys without effect, odd ones, and ones that
change the computation.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

from atelier.engine.config.family import t5
from atelier.engine.config.foreign.idle_keys import TRAINING, Idle
from tests.foreign.search import Case

SMALL: Case = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip
GPT2: Case = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new", "n_inner": None, "tie_word_embeddings": True,
}  # fmt: skip
T5: Case = {
    "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu", "tie_word_embeddings": True, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, Case]] = {
    "llama": ("Llama", SMALL | {"attention_bias": False, "mlp_bias": False}),
    "mistral": ("Mistral", SMALL | {"sliding_window": None}),
    "qwen2": ("Qwen2", SMALL | {"use_sliding_window": False}),
    "qwen3": ("Qwen3", SMALL | {"head_dim": 8, "attention_bias": False}),
    "qwen3_moe": (
        "Qwen3Moe",
        SMALL
        | {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8,
            "decoder_sparse_step": 1, "norm_topk_prob": True,
        },
    ),
    "mixtral": (
        "Mixtral", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "gpt2": ("GPT2", GPT2),
    "t5": ("T5", T5),
}  # fmt: skip
ROPES: list[Any] = [
    None,
    {"rope_type": "linear", "factor": 2.0},
    {"type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "dynamic", "factor": 2.0},
]  # fmt: skip
# what else a model of the family may be, by key
MAY_BE: dict[str, dict[str, list[Any]]] = {
    "rotary": {
        "num_key_value_heads": [1, 2, 4, None], "hidden_act": ["silu", "gelu", "gelu_pytorch_tanh", "relu"],
        "tie_word_embeddings": [False, True], "rms_norm_eps": [1e-5, 1e-3], "rope_theta": [10000.0, 500.0],
        "rope_scaling": ROPES, "head_dim": [None, 8, 16],
    },
    "llama": {"attention_bias": [False, True], "mlp_bias": [False, True]},
    "mistral": {"sliding_window": [None, 5, 40]},
    "mixtral": {"sliding_window": [None, 5], "num_experts_per_tok": [1, 2]},
    "qwen2": {
        "use_sliding_window": [False, True], "sliding_window": [None, 6], "max_window_layers": [0, 1, 2],
        "layer_types": [None, ["full_attention", "sliding_attention"], ["full_attention"] * 2],
    },
    "qwen3": {
        "use_sliding_window": [False, True], "sliding_window": [None, 6], "max_window_layers": [0, 1, 2],
        "attention_bias": [False, True],
    },
    "qwen3_moe": {
        "norm_topk_prob": [False, True], "decoder_sparse_step": [1, 2], "num_experts_per_tok": [1, 2],
        "use_sliding_window": [False, True], "sliding_window": [None, 6], "mlp_only_layers": [[], [0], None],
    },
    "gpt2": {
        "n_inner": [None, 40], "activation_function": ["gelu_new", "gelu", "relu", "silu"],
        "tie_word_embeddings": [True, False], "layer_norm_epsilon": [1e-5, 1e-2],
        "scale_attn_weights": [True, False], "scale_attn_by_inverse_layer_idx": [False, True],
        "reorder_and_upcast_attn": [False, True],
    },
    "t5": {
        "feed_forward_proj": ["relu", "gated-gelu", "gated-silu", "gelu", "gated-gelu_new", "gated-relu"],
        "dense_act_fn": ["gelu", "relu", "silu", "gelu_new"], "is_gated_act": [False, True],
        "tie_word_embeddings": [True, False], "num_decoder_layers": [1, 2, None],
        "relative_attention_num_buckets": [8, 16],
    },
}  # fmt: skip
# keys that change nothing
KEEPS: Case = {
    "is_llama_config": True, "rope_interleaved": False, "neftune_noise_alpha": None, "unsloth_fixed": True,
    "unsloth_version": "2024.9", "_flash_attn_2_enabled": True, "quantization_config": None,
    "gradient_checkpointing": True, "max_sequence_length": 64, "transformers.js_config": {"dtype": "q4"},
    "temperature": 0.3, "top_p": 0.5, "max_length": 20, "num_beams": 4, "early_stopping": True,
    "attention_dropout": 0.1, "torch_dtype": "float16", "use_cache": False, "_name_or_path": "somebody/model",
    "architectures": None, "id2label": {"0": "a", "1": "b"}, "task_specific_params": {"x": {"prefix": "y"}},
    "output_past": True, "initializer_range": 0.5, "model_max_length": 12, "pretraining_tp": 1,
    "tokenizer_class": "PreTrainedTokenizerFast", "problem_type": None, "use_bfloat16": True,
}  # fmt: skip
# keys of other families, of code of its own and of nobody: with these values they would change a model
CHANGES: Case = {
    "is_causal": False, "partial_rotary_factor": 0.5, "attn_logit_softcapping": 30.0, "logit_scale": 0.25,
    "final_logit_softcapping": 30.0, "residual_multiplier": 0.2, "embedding_multiplier": 12.0,
    "attention_multiplier": 0.1, "rope_interleaved": True, "use_parallel_residual": True, "clip_qkv": 8.0,
    "alibi": True, "scale_emb": 12, "tie_last_hidden_states": True, "gate_scale": 2,
    "per_layer_config": {"0": {"rms_norm_eps": 0.5}}, "quantization_config": {"bits": 4},
    "auto_map": {"AutoModel": "mine.Model"}, "shared_expert_intermediate_size": 16,
    "attention_chunk_size": 4, "no_rope_layers": [1, 0], "use_qk_norm": True,
    "cross_attention_hidden_size": 8,
}  # fmt: skip


def fields(rng: random.Random, family: str, share: float = 0.35) -> Case:
    """A config of a family, as its authors might have it."""
    may_be = {**(MAY_BE["rotary"] if family not in ("gpt2", "t5") else {}), **MAY_BE.get(family, {})}
    found = dict(FAMILIES[family][1])
    for key, values in may_be.items():
        if rng.random() < share:
            found[key] = deepcopy(rng.choice(values))  # transformers writes into it
    return found


def beside(rng: random.Random) -> Case:
    """Some keys that change nothing."""
    return {key: deepcopy(KEEPS[key]) for key in rng.sample(sorted(KEEPS), rng.randint(0, 5))}


@contextmanager
def without_activation() -> Iterator[None]:
    """Atelier as it was: T5's `dense_act_fn` and `is_gated_act` change nothing."""
    kept = t5.FAMILY
    ignored = Idle(TRAINING, ("dense_act_fn", "is_gated_act"))

    def mlp(config: Any) -> Any:
        return t5._mlp({"feed_forward_proj": config.get("feed_forward_proj", "relu")})

    t5.FAMILY = replace(kept, also=(kept.also[0], mlp), beside=(ignored, *kept.beside))
    try:
        yield
    finally:
        t5.FAMILY = kept
