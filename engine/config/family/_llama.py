"""What families after Llama have in common: keys, rotary positions, windows, names of weights."""

import math
from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.families import Config, Fields, Key, Part, Reader, flag
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.rope import USES

GATED = {
    "silu": "swiglu", "swish": "swiglu", "gelu": "geglu_exact", "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu", "relu": "reglu",
}  # fmt: skip
WRITTEN = {"swiglu": "silu", "geglu_exact": "gelu", "geglu": "gelu_pytorch_tanh", "reglu": "relu"}
ROPE = {  # our name of a number: transformers'
    "factor": "factor", "original": "original_max_position_embeddings", "low": "low_freq_factor",
    "high": "high_freq_factor", "fast": "beta_fast", "slow": "beta_slow", "attention": "attention_factor",
}  # fmt: skip
OPTIONAL = ("fast", "slow", "attention")
FULL, SLIDING = "full_attention", "sliding_attention"


def keys(eps: float, positions: int) -> tuple[Key, ...]:
    """`eps`, `positions`: what their absence means."""
    return (
        Key("num_hidden_layers", "num_layers"),
        Key("hidden_size", "hidden"),
        Key("intermediate_size", "ffn"),
        Key("num_attention_heads", "num_heads"),
        Key("vocab_size", "vocab"),
        Key("rms_norm_eps", "norm_eps", eps),
        Key(
            "hidden_act",
            "mlp",
            "silu",
            lambda name: GATED[str(name)],
            lambda kind: WRITTEN.get(str(kind), ""),
        ),
        Key("tie_word_embeddings", "tied", False, flag),
        Key("max_position_embeddings", "max_positions", positions),
    )


def some(number: Json) -> Json:
    """Of experts: a family that has them has one or more. Raises ConfigError for none."""
    if not number:
        raise ConfigError("experts", f"{number!r}, but the family has them", "the family without experts")
    return number


def heads(default: int | None) -> Reader:
    """`default`: the width of heads where it is not given; None = the model's shared out among them."""

    def read(config: Config) -> tuple[Fields, set[str]]:
        kv = config.get("num_key_value_heads")
        width = config.get("head_dim", default)
        found: Fields = {
            "num_kv_heads": "auto" if kv is None else kv,
            "head_dim": "auto" if width is None else width,
        }
        return found, {"num_key_value_heads", "head_dim"}

    return read


def written_heads(spec: GPT) -> dict[str, Json]:
    return {"num_key_value_heads": spec.kv_heads, "head_dim": spec.head_width}


def rope(config: Config, theta: float = 10000.0) -> tuple[Fields, set[str]]:
    """Rotary positions in transformers' newer spelling (rope_parameters) or the older one (rope_theta and
    rope_scaling); where there are both they have to say the same.
    """
    newer, older = config.get("rope_parameters"), config.get("rope_scaling")
    found: list[Fields] = []
    if newer is not None:
        given = {"rope_theta": config.get("rope_theta", theta), **cast(Config, newer)}
        found.append(_rope(config, given, theta))
    if older is not None or newer is None:
        found.append(
            _rope(config, {"rope_theta": config.get("rope_theta", theta), **cast(Config, older or {})}, theta)
        )
    if found[0] != found[-1]:
        raise ConfigError("rope_scaling", f"{older!r} is not what rope_parameters say: {newer!r}")
    return found[0], {"rope_parameters", "rope_scaling", "rope_theta"}


def _rope(config: Config, given: Fields, theta: float) -> Fields:
    place = "rope_parameters"
    base = given.pop("rope_theta", theta)
    kind = str(given.pop("rope_type", given.pop("type", "default")))
    given.pop("type", None)
    kind = "plain" if kind == "default" else kind
    if kind not in USES:
        raise ConfigError(f"{place}.rope_type", f"{kind} is not understood; known are {', '.join(USES)}")
    if given.get("partial_rotary_factor", 1.0) in (1, 1.0):
        given.pop("partial_rotary_factor", None)
    if kind == "yarn":
        given.setdefault(ROPE["original"], config.get("max_position_embeddings"))
        if given.get("truncate", True) is True:
            given.pop("truncate", None)
        mine, all_dim = given.pop("mscale", None), given.pop("mscale_all_dim", None)
        if given.get(ROPE["attention"]) is None and mine and all_dim:
            factor = float(cast(float, given["factor"]))
            given[ROPE["attention"]] = _scale(factor, float(cast(float, mine))) / _scale(
                factor, float(cast(float, all_dim))
            )
    for ours in USES[kind]:
        if ours not in OPTIONAL and given.get(ROPE[ours]) is None:
            raise ConfigError(f"{place}.{ROPE[ours]}", f"is missing, and {kind} needs it")
    if given.get(ROPE["attention"], 1) == 0:
        raise ConfigError(f"{place}.{ROPE['attention']}", "0 is not understood", "leave it out")
    made: Fields = {"kind": kind}
    for ours, theirs in ROPE.items():
        value = given.pop(theirs, None)
        if ours in USES[kind] and value is not None:
            made[ours] = value
        elif value is not None and not (kind == "plain" or ours == "original"):
            given[theirs] = value
    for name, value in given.items():
        raise ConfigError(f"{place}.{name}", f"{value!r}: what {kind} would do with it is not known")
    return {"rope_theta": base, "rope": made}


def _scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def written_rope(spec: GPT) -> dict[str, Json]:
    """Both spellings: transformers 4 reads the older one alone, and without it takes its own numbers."""
    numbers = spec.rope.model_dump(mode="json")
    used = {
        ROPE[name]: numbers[name] for name in USES[spec.rope.kind] if name != "attention" or numbers[name]
    }
    kind = {"rope_type": "default" if spec.rope.kind == "plain" else spec.rope.kind}
    longer = int(spec.rope.original * spec.rope.factor)
    return {
        "max_position_embeddings": max(spec.max_positions, longer),
        "rope_parameters": {**kind, **used, "rope_theta": spec.rope_theta},
        "rope_theta": spec.rope_theta,
        "rope_scaling": {**kind, **used} if used else None,
    }


def biases(*, default: bool = False, mlp: bool = False) -> Reader:
    """`attention_bias` of queries, keys, values and outputs; `mlp_bias` where a family has it."""

    def read(config: Config) -> tuple[Fields, set[str]]:
        found = ["qkv", "out"] if config.get("attention_bias", default) else []
        found += ["mlp"] if mlp and config.get("mlp_bias", False) else []
        return {"bias": cast(Json, found)}, {"attention_bias", *(["mlp_bias"] if mlp else [])}

    return read


def window(default: int | None) -> Reader:
    """`sliding_window` of all blocks."""

    def read(config: Config) -> tuple[Fields, set[str]]:
        return {"window": config.get("sliding_window", default) or 0}, {"sliding_window"}

    return read


def some_windows(config: Config) -> tuple[Fields, set[str]]:
    """`sliding_window` of the blocks that layer_types or max_window_layers say, as Qwen has it."""
    names = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
    number = int(cast(int, config.get("num_hidden_layers", 0)))
    width = config.get("sliding_window", 4096) if config.get("use_sliding_window", False) else None
    first = int(cast(int, config.get("max_window_layers", 28)))
    usual = [SLIDING if width is not None and n >= first else FULL for n in range(number)]
    kinds = cast(list[str], config.get("layer_types") or usual)
    if len(kinds) != number or not set(kinds) <= {FULL, SLIDING}:
        raise ConfigError("layer_types", f"{kinds!r} is not understood", f"{number} of {FULL} and {SLIDING}")
    blocks = [n for n, kind in enumerate(kinds) if kind == SLIDING]
    if not blocks or width is None:
        if blocks:
            raise ConfigError(
                "layer_types", f"names {SLIDING}, but use_sliding_window is not true or sliding_window empty"
            )
        return {}, names
    return {"window": width, "window_blocks": "all" if len(blocks) == number else cast(Json, blocks)}, names


def written_windows(spec: GPT) -> dict[str, Json]:
    kinds = [SLIDING if spec.has_window(number) else FULL for number in range(spec.num_layers)]
    return {
        "use_sliding_window": bool(spec.window),
        "sliding_window": spec.window or None,
        "max_window_layers": next((n for n, kind in enumerate(kinds) if kind == SLIDING), spec.num_layers),
        "layer_types": cast(Json, kinds),
    }


def weights(*, mixed: bool = False) -> dict[str, Part]:
    """All that a model may have; of a mixture without its experts."""
    block, found = "model.layers.{i}.", {}
    for ours, theirs in (("embed", "model.embed_tokens"), ("norm", "model.norm"), ("head", "lm_head")):
        found[f"{ours}.weight"] = Part(f"{theirs}.weight")
    names = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
    names |= {f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in ATTENTION.items()}
    names |= {} if mixed else {f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    for ours, theirs in names.items():
        for leaf in ("weight", "bias"):
            found[f"blocks.{{i}}.{ours}.{leaf}"] = Part(f"{block}{theirs}.{leaf}")
    return found


ATTENTION = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj",
    "query_norm": "q_norm", "key_norm": "k_norm",
}  # fmt: skip
EXTRA = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
