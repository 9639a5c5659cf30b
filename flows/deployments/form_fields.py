"""The fields of a flow's form: their order, schemas, defaults and help.

Choices come from conf/; types, bounds and help of numbers come from the specs.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Required, TypedDict, cast

from pydantic import create_model

from atelier.engine.config.base import FieldPlace, Given, JsonObject
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.project_roots import file_of_module, module_of
from atelier.engine.config.registry import ObjectiveSpec, spec_class
from atelier.flows.run.catalog import (
    FlowShape,
    GroupChoice,
    flow_file,
    flow_names,
    option_text,
    options,
    places,
    used_choices,
)
from atelier.flows.run.overrides import SHOWN, shown
from atelier.flows.run.pools import POOL_WHEN_BLANK, pool_of
from atelier.flows.run.registry import is_idle


class FieldSchema(TypedDict, total=False):
    """JSON schema of a field."""

    title: str
    position: int
    type: Required[str]
    description: Required[str]
    enum: list[str]
    items: dict[str, str]
    pattern: str
    minimum: float
    maximum: float
    exclusiveMinimum: float
    exclusiveMaximum: float
    default: str | bool  # filled in by the page
    properties: "dict[str, FieldSchema]"  # of a group of fields


class FormSchema(TypedDict):
    """JSON schema of a form, as Prefect takes it."""

    title: str
    type: str
    properties: dict[str, FieldSchema]
    required: list[str]


ALWAYS = ("experiment", "pool")
NEVER = ("role", "tracker")  # overrides replace a whole role or the tracker
NESTED = ("ahead.",)  # groups that only some options have; chosen by an override
BASIC = (  # first on the page: the first MOST_BASIC of these in the flow
    "experiment", "pool", "name", "source", "init", "models", "checkpoints", "evals", "chats.source",
    "data.source", "train.steps", "train.seed", "model", "optim.lr", "score.controls",
    "roles.student_a.optim.lr", "finetune.num_labels", "finetune.epochs", "roles.teacher.optim.lr",
    "tokenizer", "train.global_batch", "score.max_tokens",
)  # fmt: skip
MOST_BASIC = 10
FIRST_LOOK = "tiny"  # the experiment chosen by default
KEYS = (  # the keys changed most; `*` is any name; a flow's form has those in its configuration
    "name", "init", "models", "checkpoints", "evals", "pose.draws", "pose.data", "examine.precision",
    "source", "pool.queue", "pool.tasks", "chats.source", "data.source", "data.field",
    "train.steps", "train.global_batch", "train.sequence", "train.precision", "train.seed",
    "train.checkpoint_every", "parallel.shard", "parallel.replicate", "parallel.tensor",
    "parallel.pipeline", "parallel.context", "parallel.expert", "optim.lr", "roles.*.optim.lr",
    "roles.*.start", "grow.vocab", "grow.mix", "tune.chats.source", "tune.steps", "tune.sequence",
    "tune.optim.lr", "tune.student_optim.lr", "detect.steps", "finetune.num_labels", "finetune.draws",
    "finetune.epochs", "finetune.optim.lr",
    "score.controls", "score.max_tokens", "score.max_examples",
)  # fmt: skip
SECTIONS = (  # of a form, in order; others follow in the flow's order
    "experiment", "pool", "name", "source", "init", "models", "checkpoints", "chats", "data", "tokenizer",
    "train", "model", "objective", "optim", "roles", "ahead", "imitate", "grow", "upcycle", "detect",
    "tune", "transfer", "generate", "finetune", "score", "evals", "pose", "examine",
)  # fmt: skip
RARE = (
    "train.precision",
    "train.checkpoint_every",
    "parallel",
    "pool.queue",
    "pool.tasks",
)  # after all sections
BOUNDS = {  # JSON schema's name: pydantic's name, words, test
    "minimum": ("ge", "at least", operator.ge),
    "maximum": ("le", "at most", operator.le),
    "exclusiveMinimum": ("gt", "above", operator.gt),
    "exclusiveMaximum": ("lt", "below", operator.lt),
}
KEPT = ("type", "enum", "items", "pattern", *BOUNDS)
PAPER = re.compile(r"to plan, not to run|\(\d{4}\.\d{4,5}\b|on paper")
NAMED = r"^[A-Za-z0-9_.-]+=[A-Za-z0-9_.-]+$"  # an item of a mapping
OVERRIDES: FieldSchema = {
    "type": "array",
    "items": {"type": "string"},
    "description": (
        "anything else, one override each, such as train.keep=1 or tracker=none;"
        " they win over the fields above"
    ),
}
CODE: FieldSchema = {
    "type": "string",
    "pattern": "^[0-9a-f]{32}$",
    "description": "digest of the frozen code to run, 32 hex digits; blank = the present code",
}

SWEEP: FieldSchema = {
    "type": "string",
    "pattern": "^[0-9a-f]{12}/[0-9]{1,6}$",
    "description": "a sweep and the number of its point; filled in by `atelier <flow> -m`",
}


@dataclass(frozen=True)
class Field:
    """A field of the form. `key`: the command line's key; '' for fields that are not overrides. A mapping is
    a list of texts NAME=VALUE.
    """

    title: str
    schema: FieldSchema
    key: str = ""

    @property
    def is_mapping(self) -> bool:
        return self.schema.get("pattern") == NAMED

    @property
    def name(self) -> str:
        """The parameter's name in Python and in the URL of Prefect's API."""
        place = self.title.partition("@")[2] or self.title
        return re.sub(r"\W", "_", place)


def basic(flow: str) -> tuple[str, ...]:
    """Names of the first fields on the page, in order."""
    return tuple(name for name, field in fields_of(flow).items() if field.key in BASIC)[:MOST_BASIC]


@cache
def fields_of(flow: str) -> dict[str, Field]:
    if flow not in flow_names():
        near = nearest(str(flow)[:SHOWN], flow_names())
        way_out = f"did you mean {near}?" if near else f"there are: {', '.join(flow_names())}"
        raise ConfigError("flow", f"no flow {shown(flow)}", way_out)
    shape = FlowShape(flow)
    fields: dict[str, Field] = {}
    for field in (
        *sorted([*_selects(shape), *_boxes(shape)], key=_section_of),
        Field("overrides", OVERRIDES),
        Field("code", CODE),
        Field("sweep", SWEEP),
    ):
        if field.name in fields:
            raise ValueError(f"two fields of the form of {flow} are called {field.name}")
        fields[field.name] = field
    first = [key for key in BASIC if any(field.key == key for field in fields.values())][:MOST_BASIC]
    by_key = {field.key: name for name, field in fields.items() if field.key in first}
    return {by_key[key]: fields[by_key[key]] for key in first} | fields


def _section_of(field: Field) -> tuple[int, str]:
    """The section of a field; each role is a section."""
    place = field.title.partition("@")[2] or field.title
    first, *rest = place.split(".")
    if any(place == rare or place.startswith(f"{rare}.") for rare in RARE):
        return len(SECTIONS) + 1, ""
    if first not in SECTIONS:
        return len(SECTIONS), ""
    return SECTIONS.index(first), rest[0] if first == "roles" else ""


def _selects(shape: FlowShape) -> Iterator[Field]:
    """Experiment, pool, then every group with a choice."""
    chosen = list(used_choices(shape))
    first = [choice for name in ALWAYS for choice in chosen if choice.group == name]
    others = [choice for choice in chosen if choice.group not in (*ALWAYS, *NEVER)]
    plain = [choice for choice in others if not choice.package.startswith(NESTED)]
    rest = [choice for choice in plain if not is_idle(shape.flow, choice.package)]
    for choice in (*first, *rest):
        offered = _offered(shape, choice)
        if choice.group in ALWAYS or len(offered) > 1:
            about = "; ".join(filter(None, (_about(choice.group, option) for option in offered)))
            now = POOL_WHEN_BLANK if choice.group == "pool" else choice.option
            text = _help(
                about, now, {} if choice.group in ALWAYS else _in_experiments(shape.flow, choice.key)
            )
            schema: FieldSchema = {"type": "string", "enum": offered, "description": text}
            filled_in = {"experiment": FIRST_LOOK, "pool": POOL_WHEN_BLANK}.get(choice.group)
            if filled_in in offered:
                schema["default"] = filled_in
            yield Field(choice.key, schema, choice.key)


def _offered(shape: FlowShape, choice: GroupChoice) -> list[str]:
    """The options that can work there: objectives with a teacher only for students."""
    found = [option for option in options(choice.group) if not is_of_a_paper(choice.group, option)]
    if choice.group == "pool":
        return [one for one in found if (pool := pool_of(one)).is_served and not pool.paper]
    if choice.group == "experiment":  # of this flow: some are for other flows' roles
        return list(_experiments(shape.flow))
    if choice.group != "objective":
        return found
    beside, _, last = choice.package.rpartition(".")
    has_teacher = bool(_section(shape.document, beside).get("teacher"))
    offered = []
    for option in found:
        document = FlowShape(shape.flow, (f"{choice.key}={option}",)).document
        parts = _section(_section(document, beside), last).values()
        kinds = [spec_class("objective", str(section_of(part)["kind"])) for part in parts]
        if any(issubclass(kind, ObjectiveSpec) and kind.needs_teacher for kind in kinds) == has_teacher:
            offered.append(option)
    return offered


def _section(document: JsonObject, package: str) -> JsonObject:
    for part in filter(None, package.split(".")):
        document = section_of(document[part])
    return document


def is_of_a_paper(group: str, option: str) -> bool:
    """True for a preset of a paper's size, which can be planned here but not run."""
    about, example = option_text(group, option)
    of_size = example.startswith("atelier plan ") and bool(PAPER.search(about))
    return option.endswith("_paper") or of_size


def _about(group: str, option: str) -> str:
    about = option_text(group, option)[0]
    return f"{option}: {about}" if about else ""


def _boxes(shape: FlowShape) -> Iterator[Field]:
    roots = places(shape)
    for pattern in (*KEYS, *_own_keys(shape.flow, roots)):
        first, *rest = pattern.split(".")
        for place in _places(roots.get(first), rest):
            if not is_idle(shape.flow, place.name):
                schema = _schema(place, _in_experiments(shape.flow, place.name))
                yield Field(place.name, schema, place.name)


def _own_keys(flow: str, roots: Mapping[str, FieldPlace]) -> Iterator[str]:
    """The keys of parameters that no flow of Atelier has: each, or the fields of a section."""
    if not file_of_module(module_of(flow_file(flow))):
        return
    known = {*SECTIONS, "parallel", *(pattern.split(".")[0] for pattern in KEYS)}
    for name in sorted(roots.keys() - known):
        fields = [*roots[name].below()]
        yield from [field.name for field in fields if not [*field.below()]] if fields else [name]


def _places(place: FieldPlace | None, rest: Sequence[str]) -> Iterator[FieldPlace]:
    if place is None or not rest:
        yield from () if place is None else (place,)
        return
    below = place.below() if rest[0] == "*" else (place.down(rest[0]),)
    for one in below:
        yield from _places(one, rest[1:])


def _schema(place: FieldPlace, others: Mapping[str, Given]) -> FieldSchema:
    """The field's type and bounds as pydantic reports them; of several types the number."""
    model = create_model("Box", value=(cast(type, place.annotation), place.field))
    known = model.model_json_schema()["properties"]["value"]
    arms = [arm for arm in known.get("anyOf", ()) if "const" not in arm]
    arm = next((arm for arm in arms if arm["type"] == "number"), arms[0] if arms else {})
    plain = {key: value for key, value in {**known, **arm}.items() if key in KEPT}
    if plain.get("type") == "object":
        plain = {"type": "array", "items": {"type": "string"}, "pattern": NAMED}
    for item in place.metadata:  # pydantic's schema of a union has no bounds
        plain |= {key: getattr(item, mark) for key, (mark, _, _) in BOUNDS.items() if hasattr(item, mark)}
    now = place.value
    if now is None and place.field is not None and not place.field.is_required():
        now = place.field.default
    return cast(FieldSchema, plain | {"description": _help(place.about, now, others)})


def _help(about: str, now: Given, others: Mapping[str, Given]) -> str:
    """The help, with the default and the differing defaults of experiments."""
    if now == "???":
        return f"{about}. Needed".lstrip(". ")
    differ = [f"{name}: {_plain(value)}" for name, value in others.items() if value != now]
    default = [f"Default: {_plain(now)}"] if now or isinstance(now, bool) else []
    means = "; ".join([*default, *differ])
    return f"{about}{' ' if about.endswith('?') else '. '}{means}" if about and means else about or means


def _plain(value: Given) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _experiments(flow: str) -> dict[str, FlowShape]:
    """The flow's configuration in each runnable experiment."""
    found = [option for option in options("experiment") if not is_of_a_paper("experiment", option)]
    shapes = {option: FlowShape(flow, (f"experiment={option}",)) for option in found}
    return {option: shape for option, shape in shapes.items() if not shape.unmatched}


def _in_experiments(flow: str, key: str) -> dict[str, Given]:
    """The option or value of `key` in each experiment that has one."""
    found: dict[str, Given] = {}
    for name, shape in _experiments(flow).items():
        value: Given = shape.choices[key].option if key in shape.choices else shape.document
        for part in () if key in shape.choices else key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, dict):
            found[name] = value
    return found
