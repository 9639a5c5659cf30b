"""Model families in transformers' format: keys of config.json and names of weights. Torch-free.

`model_type: qwen3` is engine/config/family/qwen3.py. Unknown keys and weights are refused by name, never
dropped.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.foreign.config_keys import (
    ARCHITECTURES,
    TYPE,
    Config,
    Fields,
    Key,
    ReadConfig,
    Reader,
    short,
)
from atelier.engine.config.foreign.idle_keys import IDLE, NEVER, Idle, row_of
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec

FOLDER = Path(__file__).parent.parent / "family"
UNUSED = ".router.load"  # a weight used only in training

Said = GPT | EncDec  # the model kinds that families can describe


class Reading(NamedTuple):
    """The result of reading a config: the model (None if anything is refused), the keys that describe it,
    keys without effect with the reason, and all refusals.
    """

    spec: "Said | None"
    read: list[str]
    idle: dict[str, str]
    refused: list[ConfigError]


class Part(NamedTuple):
    """Where a weight is stored: the foreign name, with {i} for the block and {e} for an expert (experts are
    stacked); part number `part` of `count` equal parts of its outputs; `turned`: stored with inputs first.
    """

    name: str
    part: int = 0
    count: int = 1
    turned: bool = False


@dataclass(frozen=True)
class Family:
    """One `model_type`. `also`: readers of keys that depend on each other; `back` writes these keys."""

    name: str
    architecture: str
    keys: tuple[Key, ...]
    weights: Mapping[str, Part]  # by pattern of our names
    also: tuple[Reader, ...]
    back: Callable[..., dict[str, Json]]  # takes a model of the family's kind
    fixed: Fields = field(default_factory=dict)  # fields that are equal in all its models
    beside: tuple[Idle, ...] = ()  # idle keys of this family; they precede those of all families
    extra: tuple[str, ...] = ()  # patterns of weights to ignore: buffers
    optional: str = ""  # optional prefix of weight names
    model: type[Said] = GPT
    renamed: Callable[[str, ModelSpec], str] = lambda ours, spec: ours  # applied before `weights` is read
    version: Callable[[Config], int] = lambda config: (
        1
    )  # version of a config's meaning; raised only for configs whose meaning changed
    stacked: tuple[str, ...] = ()  # modules that peft takes for experts in every block, even dense ones
    copies: tuple[str, ...] = ()  # foreign weights that may repeat the embedding

    def spec(self, config: Config, place: str) -> Said:
        """The model that a config describes. Raises ConfigError for the first unknown key, with name and
        value.
        """
        found = self.reading(config, place)
        if found.spec is None:
            raise found.refused[0]
        return found.spec

    def reading(self, config: Config, place: str) -> Reading:
        """Everything that a config says, with all refusals."""
        asked, found, refused = ReadConfig(config), dict(self.fixed), list[ConfigError]()
        for key in self.keys:
            value = asked.get(key.name, key.default)
            if value is None and key.default is None:
                way_out = "use the config as it was saved"
                refused.append(ConfigError(f"{place}: {key.name}", "is missing", way_out))
                continue
            try:
                _put(found, key.field, key.read(value))
            except (KeyError, TypeError, ValueError):
                refused.append(ConfigError(f"{place}: {key.name}", f"{short(value)} is not understood"))
        for reader in self.also:
            try:
                for name, value in reader(asked).items():
                    _put(found, name, value)
            except ConfigError as error:
                refused.append(ConfigError(f"{place}: {error.place}", error.problem, error.way_out))
        idle = self._beside(config, asked.asked, place, refused)
        read = [name for name in config if name in asked.asked]
        try:
            return Reading(None if refused else parse(self.model, found, place), read, idle, refused)
        except ConfigError as error:
            return Reading(None, read, idle, [self._in_its_words(error, place)])

    def _beside(
        self, config: Config, known: set[str], place: str, refused: list[ConfigError]
    ) -> dict[str, str]:
        """The keys without effect, with the reason; unknown keys are added to `refused`."""
        named, idle = config.get(ARCHITECTURES), dict[str, str]()
        if named not in (None, [], [self.architecture]):
            problem = f"{short(named)}: only {self.architecture} is supported"
            refused.append(ConfigError(f"{place}: {ARCHITECTURES}", problem))
        for name, value in config.items():
            if name in known:
                continue
            row = row_of(name, (*self.beside, *IDLE))
            if row is not None and row.takes(value):
                idle[name] = row.why
            elif name in NEVER:
                refused.append(ConfigError(f"{place}: {name}", *NEVER[name]))
            elif row is not None:
                problem = f"{short(value)} is not understood; it may be {row.values[0]!r}"
                refused.append(ConfigError(f"{place}: {name}", problem))
            else:
                problem = f"{short(value)}: unknown key of the family {self.name}"
                refused.append(ConfigError(f"{place}: {name}", problem))
        return idle

    def _in_its_words(self, error: ConfigError, place: str) -> ConfigError:
        """An error of the model's spec, with the config's keys instead of the spec's fields."""
        names = SAID | {key.field: key.name for key in self.keys}
        field = error.place.removeprefix(place).lstrip(".")
        where = f"{place}: {names.get(field, field)}" if field else place
        words = re.compile("|".join(rf"\b{re.escape(name)}\b(?=[ =]\d)" for name in names))
        return ConfigError(where, words.sub(lambda one: names[one[0]], error.problem), error.way_out)

    def config(self, spec: Said) -> dict[str, Json]:
        """The config of a model. Raises ConfigError if the family cannot express it."""
        if not isinstance(spec, self.model):
            problem = f"{self.name} cannot express kind {spec.kind}"
            raise ConfigError("--family", problem, "choose another family or model")
        document = spec.model_dump(mode="json")
        made: dict[str, Json] = {TYPE: self.name, ARCHITECTURES: [self.architecture]}
        for key in self.keys:
            value = _get(document, key.field, spec)
            made[key.name] = key.write(value)
            if made[key.name] == "":  # the family has no value for it
                raise ConfigError(
                    "--family",
                    f"{self.name} cannot express {key.field} {value}",
                    "choose another family or model",
                )
        made |= self.back(spec)
        again = self.spec(made, self.name)
        strange = (
            name for name in spec.shapes() if self.foreign(name, spec) is None and not name.endswith(UNUSED)
        )
        if said := difference(spec, again) or next(strange, ""):
            raise ConfigError(
                "--family", f"{self.name} cannot express {said}", "choose another family or model"
            )
        return made

    def foreign(self, ours: str, spec: ModelSpec) -> Part | None:
        """Where our weight is stored, with all numbers filled in except an expert's."""
        pattern, numbers = _pattern(self.renamed(ours, spec))
        part = self.weights.get(pattern)
        return None if part is None else part._replace(name=part.name.replace("{i}", numbers))


def difference(one: Said, other: Said) -> str:
    """The first field in which two models compute differently, with the value in `one`; '' if they are
    equal.
    """
    mine, theirs = _meaning(one), _meaning(other)
    return next((f"{name} {value}" for name, value in mine.items() if theirs.get(name) != value), "")


def _meaning(spec: Said) -> dict[str, Json]:
    """The fields that a model's computation depends on, with `auto` resolved."""
    document = spec.model_dump(mode="json", exclude=FREE)
    if isinstance(spec, EncDec):
        sizes = {"encoder_layers": spec.num_encoding, "ffn": spec.inner, "vocab": spec.tokens}
        heads = {"num_kv_heads": spec.kv_heads, "head_dim": spec.head_width}
        plain: dict[str, Json] = {name: value for name, value in document.items() if name not in EXPERTS}
        return plain | sizes | heads | _mixtures(spec)
    found: dict[str, Json] = {name: value for name, value in document.items() if name not in PARTS}
    found |= {"vocab": spec.tokens, "num_kv_heads": spec.kv_heads, "head_dim": spec.head_width}
    found |= {f"rope.{name}": value for name, value in document["rope"].items()}
    found |= {f"multipliers.{name}": value for name, value in document["multipliers"].items()}
    found |= {"multipliers.scores": spec.score_scale, "multipliers.logits": spec.logit_scale}
    found["bias"] = sorted(spec.bias)
    found["window_blocks"] = [number for number in range(spec.num_layers) if spec.has_window(number)]
    if spec.positions == "learned":
        found["max_positions"] = spec.max_positions
    if any(not spec.has_experts(number) for number in range(spec.num_layers)):
        found |= {"ffn": spec.inner, "mlp": spec.mlp}
    return found | _mixtures(spec)


def _mixtures(spec: Said) -> dict[str, Json]:
    if not spec.num_experts:
        return {}
    experts = spec.experts
    return {
        "num_experts": spec.num_experts,
        "experts_per_token": spec.experts_per_token,
        "experts.ffn": spec.expert_inner,
        "experts.activation": spec.expert_mlp,
        "experts.shared": experts.shared,
        "experts.every": experts.every,
        "experts.combine": experts.combine,
        "experts.router": experts.router.model_dump(mode="json", include={"kind", "score", "groups"}),
    }


# fields without effect on a finished model, and fields that are compared part by part
FREE = {"dropout", "init_std", "vocab_padding"}
EXPERTS = {"experts", "experts_per_token", "num_experts"}
PARTS = EXPERTS | {"base_width", "ffn", "max_positions", "mlp", "multipliers", "rope", "window_blocks"}


SAID = {  # fields set by readers: the config key to show in errors
    "head_dim": "head_dim", "num_kv_heads": "num_key_value_heads", "rope": "rope_parameters",
    "rope_theta": "rope_theta", "window": "sliding_window", "window_blocks": "layer_types",
    "num_experts": "num_experts", "num_layers": "num_layers", "ffn": "n_inner",
}  # fmt: skip


def _put(fields: Fields, name: str, value: Json) -> None:
    """Set a field, possibly nested: experts.ffn."""
    *outer, leaf = name.split(".")
    for part in outer:
        fields = cast(Fields, fields.setdefault(part, {}))
    fields[leaf] = value


def _get(document: Mapping[str, Json], name: str, spec: Said) -> Json:
    """A field of a spec, with `auto` resolved."""
    known = {
        "num_kv_heads": spec.kv_heads,
        "ffn": spec.inner,
        "head_dim": spec.head_width,
        "vocab": spec.tokens,
        "mlp": spec.expert_mlp if spec.num_experts and spec.experts.every == 1 else spec.mlp,
        "experts.ffn": spec.expert_inner,
        "encoder_layers": getattr(spec, "num_encoding", 0),
    }
    if name in known:
        return known[name]
    found: Json = dict(document)
    for part in name.split("."):
        found = cast(Mapping[str, Json], found)[part]
    return found


def _pattern(name: str) -> tuple[str, str]:
    """Split blocks.3.norm1.weight into blocks.{i}.norm1.weight and 3."""
    parts = name.split(".")
    if len(parts) < 3 or not parts[1].isdigit():
        return name, ""
    return ".".join([parts[0], "{i}", *parts[2:]]), parts[1]


def families() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")))


def family_of(config: Config, place: str) -> Family:
    """The family of a config. Raises ConfigError if its `model_type` is unknown."""
    name = config.get(TYPE)
    if name not in families():
        near = nearest(str(name), families())
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"{place}: {TYPE}", f"{name!r} is not known", f"{hint}known: {', '.join(families())}"
        )
    return cast(Family, importlib.import_module(f"atelier.engine.config.family.{name}").FAMILY)


def reading_of(config: Config, place: str) -> Reading:
    """Everything that a config says. For an unknown family, keys that are never read are refused too."""
    try:
        return family_of(config, place).reading(config, place)
    except ConfigError as error:
        never = [ConfigError(f"{place}: {name}", *NEVER[name]) for name in NEVER if config.get(name)]
        return Reading(None, [], {}, [error, *never])


def fitting(spec: Said) -> Iterator[Family]:
    """The families that can express a model."""
    for name in families():
        family = family_of({TYPE: name}, name)
        try:
            family.config(spec)
        except ConfigError:
            continue
        yield family
