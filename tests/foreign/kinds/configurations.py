"""A config.json alone, with keys that are added, removed, null, nested or of another type: it describes a
model and every key is read or has no effect; or it is refused with the name of a key.
"""

import random
from copy import deepcopy
from pathlib import Path
from typing import Any

from atelier.engine.config.foreign.config_keys import ARCHITECTURES, TYPE
from atelier.engine.config.foreign.families import difference, family_of, reading_of
from tests.foreign.foreign_models import CHANGES, FAMILIES, beside, fields, without_activation
from tests.foreign.search import Case

COUNT = 250
WRONG: list[Any] = [
    None, True, False, 0, -1, 1, 7, 1.5, -0.25, 10**30, "", "x", "64", "true", [], [1], {}, {"a": {"b": [1]}},
    "full_attention", ["full_attention"], "ü\u0000",
]  # fmt: skip
NULL = (
    "decoder_start_token_id", "head_dim", "layer_types", "mlp_only_layers", "n_inner", "num_decoder_layers",
    "num_experts", "num_key_value_heads", "num_local_experts", "pad_token_id", "rope_parameters",
    "rope_scaling", "sliding_window",
)  # fmt: skip
broken = without_activation


def draw(rng: random.Random) -> Case:
    family = rng.choice(sorted(FAMILIES))
    config = {**fields(rng, family), "vocab_size": 100, **beside(rng), TYPE: family}
    config[ARCHITECTURES] = rng.choice([None, [f"{FAMILIES[family][0]}ForCausalLM"], ["Other"]])
    case: Case = {"config": config, "changes": [], "wrong": {}, "left": []}
    if rng.random() < 0.3:
        case["changes"] = rng.sample(sorted(CHANGES), rng.randint(1, 3))
        config |= {key: deepcopy(CHANGES[key]) for key in case["changes"]}
    for key in rng.sample(sorted(FAMILIES[family][1]), rng.choice([0, 0, 1, 2])):
        case["wrong"][key] = config[key] = deepcopy(rng.choice(WRONG))
    if rng.random() < 0.2:
        case["left"] = [left := rng.choice(sorted(set(config) - {TYPE}))]
        del config[left]
        case["wrong"].pop(left, None)
        case["changes"] = [key for key in case["changes"] if key != left]
    return case


def check(case: Case, folder: Path) -> str:
    config: Case = case["config"]
    found = reading_of(config, "config.json")
    named = [error.place.partition(": ")[2].partition(".")[0] for error in found.refused]
    for error, key in zip(found.refused, named, strict=True):
        assert "\n" not in str(error) and len(str(error)) < 3000
        known = {*config, *case["left"], ARCHITECTURES, "hidden", "num_heads"}  # of both
        assert key in known or any(each in error.problem for each in known), str(error)
    for key in case["changes"]:
        assert key in named, f"{key}: {config[key]!r} is accepted"
    assert not named or found.spec is None
    if found.spec is None:
        assert named
        return "refused"
    assert {*config} == {*found.read, *found.idle}
    _check_types(config, case["wrong"])
    family = family_of(config, "config.json")
    again = family.spec(family.config(found.spec), "again")
    assert not difference(found.spec, again)
    if config[TYPE] == "t5":
        assert found.spec.mlp == _mlp(config), f"{found.spec.mlp} of {_mlp(config)}"
    return "works"


def _check_types(config: Case, wrong: Case) -> None:
    """A value of another type than the usual one is never taken for one."""
    usual = FAMILIES[config[TYPE]][1]
    for key, value in wrong.items():
        if key in NULL and value is None:
            continue
        kind = bool if isinstance(usual[key], bool) else str if isinstance(usual[key], str) else (int, float)
        is_alike = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        assert is_alike, f"{key}: {value!r} is accepted"


def _mlp(config: Case) -> str:
    """What transformers computes, by its documentation."""
    word = config.get("feed_forward_proj", "relu")
    act = config.get("dense_act_fn", "gelu_new" if word == "gated-gelu" else word.split("-")[-1])
    plain = {"relu": "relu", "gelu": "gelu_exact", "gelu_new": "gelu", "silu": "silu"}
    gated = {"relu": "reglu", "gelu": "geglu_exact", "gelu_new": "geglu", "silu": "swiglu"}
    return (gated if config.get("is_gated_act", word.startswith("gated-")) else plain)[act]
