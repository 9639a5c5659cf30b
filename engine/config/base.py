"""The base of all specs: frozen, keyword-only, no unknown keys; their canonical form as identity; the values
of a document that is to become one, by their places. Torch-free.
"""

import hashlib
import json
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetPydanticSchema,
    ValidationError,
)
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.identity_defaults import ABSENT

SpecType = TypeVar("SpecType", bound="Spec")
if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:  # for pydantic, which would look for the name in each module with such a field
    Json = TypeAliasType("Json", bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None)
# of a field: its content is kept as it is, whatever that holds; document.py bounds what is read
AS_IT_IS = GetPydanticSchema(lambda _, handler: handler(dict[str, Any]))
JsonObject = Annotated[Mapping[str, Json], AS_IT_IS]
Form = type | None  # what an annotation says: Literal, unions and Annotated too, as pydantic declares it
Given: TypeAlias = "Spec | Json | Sequence[Given] | Mapping[str, Given]"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="what the model is called")]
ModelName = Annotated[
    str, Field(description="a finished model: its name, an alias name@alias, or digits of its fingerprint")
]
ANSWERS = "answers"  # the lesson of a teacher's outputs for the rows of its students
Count = Annotated[int, Field(ge=1)]  # a whole number above 0; a field may also allow a word such as auto


def _whole(value: Given) -> Given:
    if isinstance(value, bool):
        raise ValueError("must be a step or a share of all steps")
    if isinstance(value, float) and value >= 1:
        if not value.is_integer():  # nor is infinity
            raise ValueError("steps from 1 on are whole; a share of all steps is below 1")
        return int(value)
    return value


Step = Annotated[int | float, BeforeValidator(_whole)]  # a step, or a share of all steps below 1


class Spec(BaseModel):
    """A frozen spec. Fields marked `json_schema_extra={"layout": True}` change bits but not meaning."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )  # built when first used: half of the time of --help was building unused specs

    def as_identity(self) -> dict[str, Json]:
        """The fields that change the result: no layout fields, and no value equal to what the field's absence
        has always meant.
        """
        absent = {
            name: value
            for base in reversed(type(self).__mro__)
            for name, value in {**ABSENT.get(base.__name__, {}), **vars(base).get("ABSENT", {})}.items()
        }
        result: dict[str, Json] = {}
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, Mapping) and extra.get("layout"):
                continue
            own = getattr(self, name)
            if isinstance(extra, Mapping) and extra.get("section") and not (own and own.is_on):
                continue
            value = identity_of(own)
            if isinstance(extra, Mapping) and extra.get("section") and value == {}:
                continue
            if name in absent and value == absent[name]:
                continue
            result[name] = value
        return result


class Kind(Spec):
    """A spec that a registry folder offers: a model, an objective, an optimiser, a schedule.

    `VERSION` numbers the meaning of its fields. Raise it when the same fields come to mean other numbers;
    only what uses the kind gets a new fingerprint. Version 1 is left out of identity. A kind whose meaning
    changed for some values only overrides `version`.
    """

    VERSION: ClassVar[int] = 1

    @property
    def version(self) -> int:
        """The version of what these values mean."""
        return self.VERSION

    def as_identity(self) -> dict[str, Json]:
        versioned = {} if self.version == 1 else {"version": self.version}
        return super().as_identity() | versioned


def identity_of(value: Given) -> Json:
    """`value` as plain JSON data, every spec in it reduced to its identity."""
    if isinstance(value, Spec):
        return value.as_identity()
    if isinstance(value, Mapping):
        return {str(k): identity_of(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [identity_of(v) for v in value]
    return cast(Json, value)


def canonical(document: Json) -> bytes:
    """JSON with one spelling: sorted keys, no spaces, UTF-8; refuses NaN."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def fingerprint(document: Json) -> str:
    """64 hex digits: sha256 of the canonical JSON."""
    return hashlib.sha256(canonical(document)).hexdigest()


def flatten(document: Json, prefix: str = "") -> dict[str, Json]:
    """Nested mappings as dotted keys: {"a": {"b": 1}} -> {"a.b": 1}. Lists stay values."""
    if not isinstance(document, Mapping):
        return {prefix: document}
    if not document:
        return {prefix: {}} if prefix else {}
    result: dict[str, Json] = {}
    for key, value in document.items():
        result.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return result


class SpecChooser(ABC):
    """The validator of a field whose spec class depends on the value, or on an extension."""

    @property
    def about(self) -> str:
        """The field's description, where the field has none itself."""
        return ""

    def plain(self) -> FieldInfo | None:
        """The field that stands for this one: of a value that is no mapping."""
        return None

    @abstractmethod
    def spec_of(self, document: Mapping[str, Given]) -> type[Spec] | None:
        """The spec class that `document` names; None when there is no such class."""


@dataclass(frozen=True)
class FieldPlace:
    """One value of a document: its dotted name, its type, and the field that holds it."""

    name: str
    annotation: Form
    value: Given = None
    metadata: tuple[object, ...] = ()  # pydantic's: of any type
    field: FieldInfo | None = None

    @property
    def about(self) -> str:
        chooser = _chooser((*self.metadata, *_metadata(self.annotation)))
        if chooser is not None and chooser.about:
            return chooser.about
        return (self.field.description or "") if self.field else ""

    @cached_property
    def spec(self) -> type[Spec] | None:
        """The spec class of the value, that of its `kind` if it has one. None for plain values and
        containers.
        """
        if chooser := _chooser((*self.metadata, *_metadata(self.annotation))):
            return chooser.spec_of(self.value if isinstance(self.value, Mapping) else {})
        found = [arm for arm in _arms(self.annotation) if isinstance(arm, type) and issubclass(arm, Spec)]
        return found[0] if found else None

    def down(self, part: str) -> "FieldPlace | None":
        """The place called `part` below this one; None when the type has no such part."""
        value = self.value.get(part) if isinstance(self.value, Mapping) else None
        name = f"{self.name}.{part}".strip(".")
        spec = self.spec
        if spec is not None:
            field = spec.model_fields.get(part)
            if field is None:
                return None
            if chooser := _chooser(field.metadata):
                field = chooser.plain() or field
            return FieldPlace(name, cast(Form, field.annotation), value, tuple(field.metadata), field)
        for arm in _arms(self.annotation):
            if get_origin(arm) is dict:
                return _item(name, get_args(arm)[1], value)
        return None

    def below(self) -> Iterator["FieldPlace"]:
        """The places one step down: a spec's fields, a mapping's items."""
        spec = self.spec
        parts = spec.model_fields if spec else self.value if isinstance(self.value, Mapping) else ()
        for part in parts:
            place = self.down(str(part))
            if place is not None:
                yield place

    def choices(self) -> list[str]:
        """The allowed words of the value, if it has any."""
        words = [
            str(word)
            for arm in _arms(self.annotation)
            if get_origin(arm) is Literal
            for word in get_args(arm)
        ]
        return ["true", "false"] if self.annotation is bool else words

    def type_text(self) -> str:
        """The type as a person reads it: int, number, text, list, or the words to choose from."""
        return " or ".join(dict.fromkeys(_type_text(arm) for arm in _arms(self.annotation)))


def _item(name: str, annotation: Form, value: Given) -> FieldPlace:
    if get_origin(annotation) is Annotated:
        kind, *metadata = get_args(annotation)
        return FieldPlace(name, kind, value, tuple(metadata))
    return FieldPlace(name, annotation, value)


def _chooser(metadata: Iterable[object]) -> SpecChooser | None:
    """The one among a field's metadata."""
    validators = (getattr(item, "func", None) for item in metadata)
    return next((one for one in validators if isinstance(one, SpecChooser)), None)


def _union(annotation: Form) -> tuple[Form, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _metadata(annotation: Form) -> tuple[object, ...]:
    """Of an Annotated type, or of those in a union."""
    arms = [arm for arm in _union(annotation) if get_origin(arm) is Annotated]
    return tuple(one for arm in arms for one in get_args(arm)[1:])


def _arms(annotation: Form) -> tuple[Form, ...]:
    arms = _union(annotation)
    return tuple(get_args(arm)[0] if get_origin(arm) is Annotated else arm for arm in arms)


def _type_text(annotation: Form) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(str(word) for word in get_args(annotation))
    plain = {int: "int", float: "number", str: "text", bool: "true|false"}
    if isinstance(annotation, type) and annotation in plain:
        return plain[annotation]
    return "list" if get_origin(annotation) in (list, tuple) else "section"


def parse(kind: type[SpecType], document: Given, place: str) -> SpecType:
    """Validate `document` as `kind`; the first fault becomes a ConfigError with place, value, what is allowed
    and the nearest name.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise explain(error, kind, place, document) from None


def explain(error: ValidationError, kind: type[Spec], place: str, document: Given = None) -> ConfigError:
    """Convert a pydantic error into a ConfigError of one line; unknown keys first, because they often cause
    the others.

    With the faulty `document`, the fields below a section whose `kind` chooses the spec are known too.
    """
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    fault = faults[0]
    here, is_field = FieldPlace("", kind, document), True
    parts: list[str] = []
    for part in fault["loc"]:
        below = here.down(str(part)) if is_field else None
        is_field = below is not None
        here = below or here
        if is_field or isinstance(part, int) or fault["type"] in ("extra_forbidden", "missing"):
            parts.append(str(part))  # the rest are pydantic's names of union members, not configuration keys
    where = ".".join([place, *parts]).strip(".")
    if fault["type"] == "extra_forbidden":
        names = [below.name.rsplit(".", 1)[-1] for below in here.below()]
        near = nearest(str(fault["loc"][-1]), names)
        advice = f"did you mean {near}? " if near else ""
        return ConfigError(where, "no such key", f"{advice}known here: {', '.join(sorted(names))}")
    if fault["type"] == "missing":
        return ConfigError(where, "a value is required", f"give {where}=<value>")
    if isinstance(fault["input"], Mapping):  # a validator over several keys names its numbers itself
        return ConfigError(where or "configuration", _sentence(fault["msg"]))
    if fault["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return ConfigError(
            where, f"must be a section (given: {_short(fault['input'])})", f"give {where}.<key>=<value>"
        )
    return ConfigError(where, f"{_sentence(fault['msg'])} (given: {_short(fault['input'])})", here.about)


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"


def _short(value: object) -> str:  # what a user gave, of whatever type
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
