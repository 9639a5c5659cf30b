"""Read and write the config of low-rank adapters in peft's format, and the names of their matrices under the
exported base (engine/config/foreign/families.py). Torch-free.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.foreign.config_keys import TYPE, Config
from atelier.engine.config.foreign.families import Family, family_of
from atelier.engine.config.model.gpt import GPT

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."  # peft's prefix of the wrapped model
INNER, OUTER = ".lora_A.weight", ".lora_B.weight"
MATRIX = ".weight"
# keys that do not change a finished adapter's output; the weights show which modules it adapts
IDLE = (
    "auto_mapping", "base_model_name_or_path", "exclude_modules", "fan_in_fan_out", "inference_mode",
    "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core",
    "peft_type", "peft_version", "qalora_group_size", "revision", "target_modules", "task_type",
)  # fmt: skip
READ = ("r", "lora_alpha", "use_rslora", "bias", "init_lora_weights")
OFF: tuple[Json, ...] = (None, False, "", [], {})
BESIDE_BASE = (True, False, None, "gaussian")  # values of init_lora_weights that leave the base unchanged


class Scaled(NamedTuple):
    """Rank of an adapter, and the scale of B A."""

    rank: int
    scale: float


def scaled(config: Config, place: str) -> Scaled:
    """Rank and scale from an adapter's config. Raises ConfigError for anything but plain LoRA. Unknown keys
    are allowed if they are off: null, false or empty.
    """
    if refused := refusals(config, place):
        raise refused[0]
    rank, alpha = cast(int, config["r"]), cast(float, config["lora_alpha"])
    return Scaled(rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def refusals(config: Config, place: str) -> list[ConfigError]:
    """All refusals of an adapter's config."""
    merged, found = "merge it with peft", dict[str, tuple[str, str]]()
    if config.get("peft_type") != "LORA":
        found["peft_type"] = (f"{config.get('peft_type')!r} is not supported", "only LORA is")
    for name, value in config.items():
        if name not in (*IDLE, *READ) and value not in OFF:
            found[name] = (f"{value!r}: only plain LoRA is supported", merged)
    begun = config.get("init_lora_weights")
    if begun not in BESIDE_BASE:
        problem = f"{begun!r} changes the base weights that the adapter belongs to"
        found["init_lora_weights"] = (problem, merged)
    if config.get("bias", "none") != "none":
        found["bias"] = (f"{config['bias']!r}: biases are not supported", merged)
    if not isinstance(config.get("use_rslora", False), bool | None):
        found["use_rslora"] = (f"{config['use_rslora']!r} is neither true nor false", "give true or false")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        found["r"] = (f"{rank!r} is not a rank", "give a whole number, 1 or more")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        found["lora_alpha"] = (f"{alpha!r} is not a number", "give a number")
    return [ConfigError(f"{place}: {name}", *each) for name, each in found.items()]


def written(
    rank: int, alpha: float, modules: Iterable[str], *, base: str, turned: bool = False
) -> dict[str, Json]:
    """The config of an adapter. `turned`: the base's matrices are stored with inputs first."""
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": turned,
        "inference_mode": True,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(set(modules)),
        "task_type": "CAUSAL_LM",
    }


class Names(NamedTuple):
    """Names of modules with a plain matrix: ours by the family's name; and those stored with inputs first."""

    ours: Mapping[str, str]
    turned: frozenset[str]


def names_of(family: Family, spec: GPT) -> Names:
    """The module names. Matrices that hold several of ours are left out: no addition fits them."""
    found, turned = dict[str, str](), set[str]()
    for ours, shape in spec.shapes().items():
        part = family.foreign(ours, spec)
        if part is None or len(shape) != 2 or part.count > 1 or not part.name.endswith(MATRIX):
            continue
        name = part.name.removesuffix(MATRIX)
        found[name] = ours.removesuffix(MATRIX)
        if part.turned:
            turned.add(name)
    return Names(found, frozenset(turned))


def split(name: str) -> tuple[str, str]:
    """Split base_model.model.x.lora_A.weight into x and .lora_A.weight; ('', '') for other names."""
    leaf = next((leaf for leaf in (INNER, OUTER) if name.endswith(leaf)), "")
    if not leaf or not name.startswith(PREFIX):
        return "", ""
    return name.removeprefix(PREFIX).removesuffix(leaf), leaf


def check_peft(family: str, weights: Iterable[str], place: str) -> None:
    """Raise ConfigError for additions that peft would misread: modules named like experts' matrices, which
    peft keeps in one stack. peft itself only warns.
    """
    modules = sorted({split(name)[0] for name in weights})
    stacked = family_of({TYPE: family}, place).stacked
    if wrong := [module for module in modules if module.rpartition(".")[2] in stacked]:
        raise ConfigError(
            place,
            f"{wrong[0]} has an addition ({len(wrong)} in all), but peft reads {', '.join(stacked)} of"
            f" {family} as parts of experts, even in dense blocks, and would build another model",
            "export the tuned model, or tune only attention: trainable.targets=[query,key,value,out]",
        )
