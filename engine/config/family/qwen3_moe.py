"""Qwen 3 (2505.09388) with experts."""

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.family import _llama as like
from atelier.engine.config.foreign.config_keys import Config, Fields, Key, flag, given
from atelier.engine.config.foreign.families import Family, Part
from atelier.engine.config.foreign.idle_keys import TRAINING, Idle
from atelier.engine.config.model.gpt import GPT

EXPERTS = "model.layers.{i}.mlp.experts.{e}"


def _experts(config: Config) -> Fields:
    """The number of experts, which has two key names."""
    newer, older = (given(config, name) for name in ("num_local_experts", "num_experts"))
    if newer is not None and older is not None and newer != older:
        raise ConfigError("num_local_experts", f"{newer!r}, but num_experts is {older!r}")
    found = newer if newer is not None else 128 if older is None else older
    if not found:
        raise ConfigError("num_experts", "0, but the family has experts", "use the family qwen3")
    return {"num_experts": found}


def _written(spec: GPT) -> dict[str, Json]:
    return {
        "attention_bias": "qkv" in spec.bias,
        "mlp_only_layers": [],
        "num_experts": spec.num_experts,
        "num_local_experts": spec.num_experts,
        "use_sliding_window": bool(spec.window),
        "sliding_window": spec.window or None,
        **like.written_heads(spec),
        **like.written_rope(spec),
    }


FAMILY = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys=(
        *like.keys(1e-6, 32768),
        Key("num_experts_per_tok", "experts_per_token", 8),
        Key("moe_intermediate_size", "experts.ffn", 768),
        Key("decoder_sparse_step", "experts.every", 1),
        Key(
            "norm_topk_prob",
            "experts.combine",
            False,
            lambda is_normed: "softmax_chosen" if flag(is_normed) else "softmax_all",
            lambda combine: combine == "softmax_chosen",
        ),
    ),
    weights=like.weights()
    | {"blocks.{i}.mlp.router.weight": Part("model.layers.{i}.mlp.gate.weight")}
    | {
        f"blocks.{{i}}.mlp.experts.{name}": Part(f"{EXPERTS}.{name}_proj.weight")
        for name in ("gate", "up", "down")
    },
    also=(like.heads(None), like.biases(), _experts, like.window(4096, is_asked=True), like.rope),
    back=_written,
    fixed={"qk_norm": True},
    stacked=("gate_proj", "up_proj", "down_proj"),
    beside=(
        Idle("names no block", ("mlp_only_layers",), ([], None)),
        Idle(TRAINING, ("output_router_logits", "router_aux_loss_coef")),
        Idle("all blocks have the same window", ("max_window_layers",)),
    ),
    extra=like.EXTRA,
)
