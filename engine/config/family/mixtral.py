"""Mixtral (2401.04088): Mistral with experts."""

from atelier.engine.config.family import _llama as like
from atelier.engine.config.foreign.config_keys import Key
from atelier.engine.config.foreign.families import Family, Part
from atelier.engine.config.foreign.idle_keys import TRAINING, Idle

MIXTURE = "model.layers.{i}.block_sparse_moe"

FAMILY = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    keys=(
        *(key for key in like.keys(1e-5, 131072) if key.name != "intermediate_size"),
        Key("intermediate_size", "experts.ffn"),
        Key("num_local_experts", "num_experts", 8, like.some),
        Key("num_experts_per_tok", "experts_per_token", 2),
    ),
    weights=like.weights(mixed=True)
    | {"blocks.{i}.mlp.router.weight": Part(f"{MIXTURE}.gate.weight")}
    | {
        f"blocks.{{i}}.mlp.experts.{ours}": Part(f"{MIXTURE}.experts.{{e}}.{theirs}.weight")
        for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    },
    also=(like.heads(None), like.window(None), lambda config: like.rope(config, 1e6)),
    back=lambda spec: {
        "sliding_window": spec.window or None,
        **like.written_heads(spec),
        **like.written_rope(spec),
    },
    beside=(Idle(TRAINING, ("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")),),
    extra=like.EXTRA,
)
