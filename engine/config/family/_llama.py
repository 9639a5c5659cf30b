"""Shared by Llama-like families: keys, rotary positions, windows, names of weights."""

import math
from collections.abc import Mapping
from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.foreign.config_keys import Config, Fields, Key, Reader, flag, given, number
from atelier.engine.config.foreign.families import Part
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.rope import USES

GATED = {
    "silu": "swiglu", "swish": "swiglu", "gelu": "geglu_exact", "gelu_new": "geglu",
    "gelu_pytorch_tanh": "geglu", "relu": "reglu",
}  # fmt: skip
WRITTEN = {"swiglu": "silu", "geglu_exact": "gelu", "geglu": "gelu_pytorch_tanh", "reglu": "relu"}
ROPE = {  # our name: transformers' name
    "factor": "factor", "original": "original_max_position_embeddings", "low": "low_freq_factor",
    "high": "high_freq_factor", "fast": "beta_fast", "slow": "beta_slow", "attention": "attention_factor",
}  # fmt: skip
OPTIONAL = ("fast", "slow", "attention")
MOST_LAYERS = 1000  # limit of engine/config/blocks.py
FULL, SLIDING = "full_attention", "sliding_attention"


def keys(eps: float, positions: int) -> tuple[Key, ...]:
    """The keys of Llama-like families. `eps`, `positions`: defaults of absent keys."""
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


def some(value: Json) -> Json:
    """A number of experts. Raises ValueError for 0: the family always has experts."""
    if not number(value):
        raise ValueError("the family has experts")
    return value


def heads(default: int | None) -> Reader:
    """Reader of the head width. `default`: width if the key is absent; None = hidden / heads."""

    def read(config: Config) -> Fields:
        kv, width = given(config, "num_key_value_heads"), given(config, "head_dim", default)
        return {
            "num_kv_heads": "auto" if kv is None else kv,
            "head_dim": "auto" if width is None else width,
        }

    return read


def written_heads(spec: GPT) -> dict[str, Json]:
    return {"num_key_value_heads": spec.kv_heads, "head_dim": spec.head_width}


def rope(config: Config, theta: float = 10000.0) -> Fields:
    """Rotary positions, in transformers' newer spelling (rope_parameters) or the older one (rope_theta,
    rope_scaling). If both are given, they must agree.
    """
    base = _positive(given(config, "rope_theta", theta), "rope_theta")
    if given(config, "partial_rotary_factor") not in (None, 1):
        raise ConfigError("partial_rotary_factor", "is not 1: partly rotary heads are not supported")
    newer, older = (given(config, name, None, _section) for name in ("rope_parameters", "rope_scaling"))
    found: list[Fields] = []
    if newer is not None:
        found.append(_rope(config, {"rope_theta": base, **cast(Config, newer)}, "rope_parameters"))
    if older is not None or newer is None:
        found.append(_rope(config, {"rope_theta": base, **cast(Config, older or {})}, "rope_scaling"))
    if found[0] != found[-1]:
        problem = f"{older!r} differs from rope_parameters: {newer!r}"
        raise ConfigError("rope_scaling", problem, "leave one of them out")
    return found[0]


def _section(value: Json) -> Json:
    if not isinstance(value, Mapping):
        raise ValueError("is not a section")
    return value


def _rope(config: Config, given: Fields, place: str) -> Fields:
    base = given.pop("rope_theta")
    kind = str(given.pop("rope_type", given.pop("type", "default")))
    given.pop("type", None)
    kind = "plain" if kind == "default" else kind
    if kind not in USES:
        raise ConfigError(f"{place}.rope_type", f"{kind} is not understood; known: {', '.join(USES)}")
    if given.get("partial_rotary_factor", 1.0) in (1, 1.0):
        given.pop("partial_rotary_factor", None)
    if kind == "yarn":
        _yarn(config, given, place)
    for ours in USES[kind]:
        if ours not in OPTIONAL and given.get(ROPE[ours]) is None:
            raise ConfigError(f"{place}.{ROPE[ours]}", f"is missing, and {kind} needs it")
    made: Fields = {"kind": kind}
    for ours, theirs in ROPE.items():
        value = given.pop(theirs, None)
        if ours in USES[kind] and value is not None:
            made[ours] = _positive(value, f"{place}.{theirs}")
        elif value is not None and not (kind == "plain" or ours == "original"):
            given[theirs] = value
    for name, value in given.items():
        raise ConfigError(f"{place}.{name}", f"{value!r}: unknown key of rope type {kind}")
    return {"rope_theta": _positive(base, f"{place}.rope_theta"), "rope": made}


def _positive(value: Json, place: str) -> Json:
    """The value. Raises ConfigError unless it is a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(place, f"{value!r} is not understood", "give a number above 0, or leave it out")
    return value


def _yarn(config: Config, given: Fields, place: str) -> None:
    """Fill in yarn's values from other keys."""
    given.setdefault(ROPE["original"], config.get("max_position_embeddings"))
    if given.get("truncate", True) is True:
        given.pop("truncate", None)
    mine, all_dim = given.pop("mscale", None), given.pop("mscale_all_dim", None)
    if given.get(ROPE["attention"]) is None and mine and all_dim:
        factor, mine, all_dim = (
            float(cast(float, _positive(value, f"{place}.{name}")))
            for name, value in (
                ("factor", given.get("factor")),
                ("mscale", mine),
                ("mscale_all_dim", all_dim),
            )
        )
        given[ROPE["attention"]] = _scale(factor, mine) / _scale(factor, all_dim)


def _scale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def written_rope(spec: GPT) -> dict[str, Json]:
    """Both spellings: transformers 4 reads only the older one and uses its own defaults without it."""
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

    def read(config: Config) -> Fields:
        found = ["qkv", "out"] if given(config, "attention_bias", default, flag) else []
        found += ["mlp"] if mlp and given(config, "mlp_bias", False, flag) else []
        return {"bias": cast(Json, found)}

    return read


def _width(config: Config, default: int | None) -> Json:
    """`sliding_window`; null means none, whatever the default is."""
    value = config.get("sliding_window", default)
    return None if value is None else _positive(value, "sliding_window")


def window(default: int | None, *, is_asked: bool = False) -> Reader:
    """Reader of a `sliding_window` for all blocks. `is_asked`: only if use_sliding_window is true.
    `layer_types` may repeat it.
    """

    def read(config: Config) -> Fields:
        is_used = given(config, "use_sliding_window", False, flag) if is_asked else True
        width = _width(config, default)
        width = width if is_used else None
        kinds, wanted = config.get("layer_types"), FULL if width is None else SLIDING
        if kinds is not None and (not isinstance(kinds, list) or {*map(str, kinds)} != {wanted}):
            raise ConfigError("layer_types", f"{kinds!r} is not understood", f"{wanted} for every block")
        return {"window": width or 0}

    return read


def no_window(config: Config) -> Fields:
    """Reader for a family without windows; the config may state that there is none."""
    if config.get("sliding_window") is not None:
        raise ConfigError("sliding_window", "is given, but the family has none", "use the family mistral")
    given(config, "use_sliding_window", False, flag)
    return window(None)(config)


def some_windows(config: Config) -> Fields:
    """`sliding_window` of the blocks that layer_types or max_window_layers select, as in Qwen."""
    count = given(config, "num_hidden_layers")
    if type(count) is not int or not 0 < count <= MOST_LAYERS:
        raise ConfigError("num_hidden_layers", f"{count!r} is not understood", f"1 to {MOST_LAYERS}")
    first, width = given(config, "max_window_layers", 28), _width(config, 4096)
    if not given(config, "use_sliding_window", False, flag):
        width = None
    usual = [SLIDING if width is not None and n >= cast(int, first) else FULL for n in range(count)]
    kinds = cast(list[str], config.get("layer_types") or usual)
    if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {FULL, SLIDING}:
        raise ConfigError("layer_types", f"{kinds!r} is not understood", f"{count} x {FULL} or {SLIDING}")
    blocks = [n for n, kind in enumerate(kinds) if kind == SLIDING]
    if blocks and width is None:
        raise ConfigError(
            "layer_types", f"has {SLIDING}, but use_sliding_window is not true or sliding_window empty"
        )
    if not blocks:
        return {}
    return {"window": width, "window_blocks": "all" if len(blocks) == count else cast(Json, blocks)}


def written_windows(spec: GPT) -> dict[str, Json]:
    kinds = [SLIDING if spec.has_window(number) else FULL for number in range(spec.num_layers)]
    return {
        "use_sliding_window": bool(spec.window),
        "sliding_window": spec.window or None,
        "max_window_layers": next((n for n, kind in enumerate(kinds) if kind == SLIDING), spec.num_layers),
        "layer_types": cast(Json, kinds),
    }


def weights(*, mixed: bool = False) -> dict[str, Part]:
    """All weights that a model may have; of a mixture, all but its experts."""
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
