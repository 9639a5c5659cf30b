"""The form that Prefect's page shows for a flow: its fields as a JSON schema, and the words of the command
line that a filled one stands for.

What can be chosen comes from conf/; types, bounds and help of the numbers come from the specs.
"""

import copy
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Required, TypedDict, cast

from pydantic import create_model

from atelier.engine.config.base import Given, Json, JsonObject
from atelier.engine.config.document import section_of
from atelier.engine.config.error import UNSEEN, ConfigError, nearest
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import FieldPlace, ObjectiveSpec, spec_class
from atelier.flows.run.catalog import FlowShape, GroupChoice, flow_names, option_text, options, used_choices
from atelier.flows.run.overrides import MOST_LETTERS, SHOWN, check_overrides, shown
from atelier.flows.run.pools import pool_of
from atelier.flows.run.registry import is_idle
from atelier.flows.run.registry import parameters as parameters_of


class FieldSchema(TypedDict, total=False):
    """JSON schema of a box."""

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


class FormSchema(TypedDict):
    """JSON schema of a form, as Prefect takes it."""

    title: str
    type: str
    properties: dict[str, FieldSchema]
    required: list[str]


POOL_WHEN_BLANK = "local"
ALWAYS = ("experiment", "pool")
NEVER = ("role", "tracker")  # a whole role is swapped, or left untracked, by an override
NESTED = ("ahead.",)  # what only some options of another select have is chosen by an override
KEYS = (  # the keys changed most; `*` stands for every name; keys that a flow lacks are left out
    "name", "init", "models", "source", "pool.queue", "chats.source", "data.source", "data.field",
    "train.steps", "train.global_batch", "train.sequence", "train.precision", "train.seed",
    "train.checkpoint_every", "parallel.shard", "parallel.replicate", "parallel.tensor",
    "parallel.pipeline", "parallel.context", "parallel.expert", "optim.lr", "roles.*.optim.lr",
    "roles.*.start", "grow.vocab", "grow.mix", "tune.chats.source", "tune.steps", "tune.sequence",
    "tune.optim.lr", "finetune.num_labels", "finetune.draws", "finetune.epochs", "finetune.optim.lr",
    "score.max_tokens", "score.max_examples",
)  # fmt: skip
SECTIONS = (  # of a form, in order; what is not here follows in the flow's order
    "experiment", "pool", "name", "source", "init", "models", "chats", "data", "tokenizer", "train", "model",
    "objective", "optim", "roles", "ahead", "imitate", "grow", "upcycle", "tune", "finetune",
    "score",
)  # fmt: skip
RARE = ("train.precision", "train.checkpoint_every", "parallel", "pool.queue")  # behind all sections
ONE_RANK = ("finetune",)  # flows of short trainings on one rank: axes and checkpoints are not asked for
BOUNDS = {  # of JSON schema: what pydantic calls it, in words, when it holds
    "minimum": ("ge", "at least", operator.ge),
    "maximum": ("le", "at most", operator.le),
    "exclusiveMinimum": ("gt", "above", operator.gt),
    "exclusiveMaximum": ("lt", "below", operator.lt),
}
KEPT = ("type", "enum", "items", "pattern", *BOUNDS)
KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "array": "a list of texts",
}
LARGEST = 2**63
PLAIN = re.compile(r"(?!(true|false|null|nan|inf)$)[a-z][a-z0-9_./-]*", re.IGNORECASE | re.ASCII)
OVERRIDES: FieldSchema = {
    "type": "array",
    "items": {"type": "string"},
    "description": (
        "anything else, one word of the command line each, such as train.keep=1 or tracker=none;"
        " they win over the fields above"
    ),
}
CODE: FieldSchema = {
    "type": "string",
    "pattern": "^[0-9a-f]{32}$",
    "description": "digest of the frozen code to run, 32 hex digits; blank = as it is now",
}

SWEEP: FieldSchema = {
    "type": "string",
    "pattern": "^[0-9a-f]{12}/[0-9]{1,6}$",
    "description": "a sweep and the number of its point; filled in by `atelier <flow> -m`",
}


@dataclass(frozen=True)
class Field:
    """One box of the form. `key` is what the command line writes; '' when the box is no word of it."""

    title: str
    schema: FieldSchema
    key: str = ""

    @property
    def name(self) -> str:
        """The parameter's name in Python and in the URL of Prefect's API."""
        place = self.title.partition("@")[2] or self.title
        return re.sub(r"\W", "_", place)


def form(flow: str) -> FormSchema:
    """The parameter schema of `flow` for Prefect: every field optional, in the order of the page.

    Raises ConfigError when there is no such flow.
    """
    fields = _fields(flow)
    properties: dict[str, FieldSchema] = {
        name: {"title": field.title, **copy.deepcopy(field.schema), "position": number}
        for number, (name, field) in enumerate(fields.items())
    }
    return {"title": "Parameters", "type": "object", "properties": properties, "required": []}


def to_overrides(flow: str, parameters: JsonObject) -> list[str]:
    """The words of the command line that a filled form stands for, in the form's order; None and '' are
    blank.

    Raises ConfigError with the key, the value and the way out for what a field does not take, whether or not
    the server has checked it before. Whether the values fit each other is checked by `compose`.
    """
    fields = _fields(flow)
    for name in parameters:
        if name not in fields:
            raise _unknown(name, fields)
    given = {name: value for name, value in parameters.items() if not _is_blank(value)}
    words: list[str] = []
    for name, field in fields.items():
        if name not in given:
            continue
        fault = _fault(given[name], field.schema)
        if fault:
            raise ConfigError(
                field.title,
                f"{fault} (given: {shown(given[name])})",
                _way_out(given[name], field.schema),
            )
        if field.key:
            words.append(_word(field, given[name]))
    own = [str(text) for text in _texts(given.get("overrides", ())) if not _is_blank(text)]
    check_overrides([*words, *own], from_form=True)
    return [*words, *own]


@cache
def _fields(flow: str) -> dict[str, Field]:
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
    return fields


def _section_of(field: Field) -> tuple[int, str]:
    """Where a box stands: its section, and of the roles each by itself."""
    place = field.title.partition("@")[2] or field.title
    first, *rest = place.split(".")
    if any(place == rare or place.startswith(f"{rare}.") for rare in RARE):
        return len(SECTIONS) + 1, ""
    if first not in SECTIONS:
        return len(SECTIONS), ""
    return SECTIONS.index(first), rest[0] if first == "roles" else ""


def _selects(shape: FlowShape) -> Iterator[Field]:
    """Experiment, pool, then every group in which there is something to choose."""
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
            schema: FieldSchema = {"type": "string", "enum": offered, "description": _help(about, now)}
            yield Field(choice.key, schema, choice.key)


def _offered(shape: FlowShape, choice: GroupChoice) -> list[str]:
    """The options that can work there: an objective that needs a teacher only where there is one."""
    found = options(choice.group)
    if choice.group == "pool":
        return [one for one in found if (pool := pool_of(one)).is_served and not pool.paper]
    if choice.group == "experiment":  # of this flow: some name another's roles
        return [option for option in found if not FlowShape(shape.flow, (f"experiment={option}",)).unmatched]
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


def _about(group: str, option: str) -> str:
    about = option_text(group, option)[0]
    return f"{option}: {about}" if about else ""


def _boxes(shape: FlowShape) -> Iterator[Field]:
    pool = FieldPlace("pool", Pool, shape.document.get("pool"))
    for pattern in KEYS:
        first, *rest = pattern.split(".")
        root = (
            pool if first == "pool" else FieldPlace("", parameters_of(shape.flow), shape.document).down(first)
        )
        for place in _places(root, rest):
            if not _is_hidden(shape.flow, place.name):
                yield Field(place.name, _schema(place), place.name)


def _is_hidden(flow: str, key: str) -> bool:
    return is_idle(flow, key) or (
        flow in ONE_RANK and key.startswith(("parallel.", "train.checkpoint_every"))
    )


def _places(place: FieldPlace | None, rest: Sequence[str]) -> Iterator[FieldPlace]:
    if place is None or not rest:
        yield from () if place is None else (place,)
        return
    below = place.below() if rest[0] == "*" else (place.down(rest[0]),)
    for one in below:
        yield from _places(one, rest[1:])


def _schema(place: FieldPlace) -> FieldSchema:
    """The field's type and bounds as pydantic reports them; of several types the one that is a number."""
    model = create_model("Box", value=(cast(type, place.annotation), place.field))
    known = model.model_json_schema()["properties"]["value"]
    arms = [arm for arm in known.get("anyOf", ()) if "const" not in arm]
    arm = next((arm for arm in arms if arm["type"] == "number"), arms[0] if arms else {})
    plain = {key: value for key, value in {**known, **arm}.items() if key in KEPT}
    for item in place.metadata:  # pydantic's schema of a union is without its bounds
        plain |= {key: getattr(item, mark) for key, (mark, _, _) in BOUNDS.items() if hasattr(item, mark)}
    now = place.value
    if now is None and place.field is not None and not place.field.is_required():
        now = place.field.default
    return cast(FieldSchema, plain | {"description": _help(place.about, now)})


def _help(about: str, now: Given) -> str:
    """The help with what a blank box means."""
    if now == "???":
        return f"{about}. Needed".lstrip(". ")
    blank = f"{now:g}" if isinstance(now, float) else str(now)
    return f"{about}. Blank: {blank}, or the experiment's".lstrip(". ") if blank else about


def _unknown(name: str, fields: Mapping[str, Field]) -> ConfigError:
    word = str(name)[:SHOWN]
    near = nearest(word, fields) or nearest(word, [field.title for field in fields.values()])
    advice = f"did you mean {near}? " if near else ""
    return ConfigError(shown(name), "the form has no such field", f"{advice}it has: {', '.join(fields)}")


def _texts(value: Json) -> Sequence[Json]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _is_blank(value: Json) -> bool:
    if isinstance(value, list | tuple):
        return all(one is None or one == "" for one in value)
    return value is None or value == ""


def _fault(value: Json, schema: FieldSchema) -> str:
    """What is wrong with a value that is not blank; '' when nothing is."""
    if not _is_kind(value, schema["type"]):
        return f"must be {KINDS[schema['type']]}"
    if "enum" in schema and value not in schema["enum"]:
        return "is not one of the options"
    if isinstance(value, int | float):
        return _number_fault(value, schema)
    for text in [value] if schema["type"] == "string" else filter(None, _texts(value)):
        fault = _text_fault(str(text), schema.get("pattern", ""))
        if fault:
            return fault
    return ""


def _number_fault(value: float, schema: FieldSchema) -> str:
    if not abs(value) < LARGEST:
        return "must be a number that a machine can hold"
    bounds = {key: bound for key, bound in schema.items() if isinstance(bound, int | float)}
    for key, (_, words, holds) in BOUNDS.items():
        if key in bounds and not holds(value, bounds[key]):
            return f"must be {words} {bounds[key]:g}"
    return ""


def _text_fault(text: str, pattern: str) -> str:
    if len(text) > MOST_LETTERS:
        return f"has {len(text)} characters, more than {MOST_LETTERS}"
    if UNSEEN.search(text):
        return "must be on one line, without control characters"
    return "" if re.search(pattern, text) else f"must match {pattern}"


def _is_kind(value: Json, kind: str) -> bool:
    if kind == "array":
        return isinstance(value, list | tuple) and all(one is None or isinstance(one, str) for one in value)
    if kind == "string":
        return isinstance(value, str)
    return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)


def _way_out(value: Json, schema: FieldSchema) -> str:
    if "enum" not in schema:
        return schema["description"]
    near = nearest(value[:SHOWN], schema["enum"]) if isinstance(value, str) else ""
    return (f"did you mean {near}? " if near else "") + f"there are: {', '.join(map(str, schema['enum']))}"


def _word(field: Field, value: Json) -> str:
    if isinstance(value, list | tuple):
        texts = [_text(field, str(text)) for text in value if not _is_blank(text)]
        return f"{field.key}=[{','.join(texts)}]"
    return f"{field.key}={_text(field, value) if isinstance(value, str) else repr(value)}"


def _text(field: Field, text: str) -> str:
    """`text` as Hydra reads it back unchanged, in quotes where it needs them."""
    if "${" in text or text == "???":
        way_out = "write the value itself; a reference to another key is written as an override"
        raise ConfigError(field.title, f"must be a plain text (given: {shown(text)})", way_out)
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r"(?<!\\)(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"
