"""Base classes of all specs: frozen, keyword-only, unknown keys refused. Also their canonical JSON and
fingerprints, and `FieldPlace`, which finds the spec field of a value in a document. Torch-free.
"""

import hashlib
import json
import re
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
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
from pydantic_core import ErrorDetails
from typing_extensions import TypeAliasType

from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.identity_defaults import ABSENT
from atelier.engine.config.own_code import code_of

SpecType = TypeVar("SpecType", bound="Spec")
if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:  # pydantic would look up the name in each module that has such a field
    Json = TypeAliasType("Json", bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None)
# for fields whose content is kept unchanged; document.py bounds what is read
AS_IT_IS = GetPydanticSchema(lambda _, handler: handler(dict[str, Any]))
JsonObject = Annotated[Mapping[str, Json], AS_IT_IS]
Form = type | None  # a type annotation, as pydantic declares it; also Literal, Annotated and unions
Given: TypeAlias = "Spec | Json | Sequence[Given] | Mapping[str, Given]"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the model")]
ModelName = Annotated[
    str, Field(description="a finished model: its name, an alias name@alias, or digits of its fingerprint")
]
ANSWERS = "answers"  # lesson: the teacher's outputs for its students' rows
Count = Annotated[int, Field(ge=1)]  # a whole number above 0; a field may allow a word as well, such as auto


def _whole(value: Given) -> Given:
    if isinstance(value, bool):
        raise ValueError("must be a step or a share of all steps")
    if isinstance(value, float) and value >= 1:
        if not value.is_integer():  # infinity is not an integer either
            raise ValueError("a step must be a whole number, a share of all steps a number below 1")
        return int(value)
    return value


Step = Annotated[int | float, BeforeValidator(_whole)]  # a step, or a share of all steps below 1


class Spec(BaseModel):
    """A frozen spec. Fields marked `json_schema_extra={"layout": True}` change bits but not meaning."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )  # built at first use: building unused specs took half of the time of --help

    def as_identity(self) -> dict[str, Json]:
        """The fields that change the result. Left out: layout fields, and values equal to the meaning of an
        absent field.
        """
        absent = _absent(type(self))
        result: dict[str, Json] = {}
        for name, is_section in _meaningful(type(self)):
            own = getattr(self, name)
            if is_section and not (own and own.is_on):
                continue
            value = identity_of(own)
            if is_section and value == {}:
                continue
            if name in absent and value == absent[name]:
                continue
            result[name] = value
        return result


class Kind(Spec):
    """A spec from a registry folder: a model, an objective, an optimiser, a schedule.

    `VERSION` numbers the meaning of its fields. Raise it when equal fields give other results; only artifacts
    that use the kind get a new fingerprint. Version 1 is left out of identity. Override `version` if the
    meaning changed for some values only. A kind of another project root has its code in its identity as well.
    """

    VERSION: ClassVar[int] = 1

    @property
    def version(self) -> int:
        """The version of these values' meaning."""
        return self.VERSION

    def as_identity(self) -> dict[str, Json]:
        versioned = {} if self.version == 1 else {"version": self.version}
        code = code_of(type(self))
        return super().as_identity() | versioned | ({"code": code} if code else {})


def meaning_of(kind: type[SpecType], identity: Given, place: str) -> SpecType:
    """The spec of which this is the identity: fields that are absent have the value that absence means."""
    given = dict(identity) if isinstance(identity, Mapping) else {}
    return parse(kind, {**_absent(kind), **given}, place)


@cache
def _absent(spec: type[Spec]) -> dict[str, Json]:
    """The field values of a spec class that count as absent."""
    return {
        name: value
        for base in reversed(spec.__mro__)
        for name, value in {**ABSENT.get(base.__name__, {}), **vars(base).get("ABSENT", {})}.items()
    }


@cache
def _meaningful(spec: type[Spec]) -> tuple[tuple[str, bool], ...]:
    """The fields of a spec class that change the result, and whether each is an extension's section."""
    found = ((name, field.json_schema_extra) for name, field in spec.model_fields.items())
    marks = ((name, extra if isinstance(extra, Mapping) else {}) for name, extra in found)
    return tuple((name, bool(mark.get("section"))) for name, mark in marks if not mark.get("layout"))


def identity_of(value: Given) -> Json:
    """`value` as plain JSON, with every spec in it reduced to its identity."""
    if value is None or isinstance(value, str | int | float):  # most values; the checks below are slow
        return value
    if isinstance(value, Spec):
        return value.as_identity()
    if isinstance(value, Mapping):
        return {str(k): identity_of(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [identity_of(v) for v in value]
    return cast(Json, value)


def canonical(document: Json) -> bytes:
    """JSON in one spelling: sorted keys, no spaces, UTF-8. Raises ValueError for NaN."""
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
    """Validator of a field whose spec class depends on the value or on an extension."""

    @property
    def about(self) -> str:
        """The description for a field that has none."""
        return ""

    def plain(self) -> FieldInfo | None:
        """The field to use in its place if the value is not a mapping; None = no such field."""
        return None

    @abstractmethod
    def spec_of(self, document: Mapping[str, Given]) -> type[Spec] | None:
        """The spec class that `document` selects; None if there is none."""


@dataclass(frozen=True)
class FieldPlace:
    """One value of a document: its dotted name, its type, and the field that holds it."""

    name: str
    annotation: Form
    value: Given = None
    metadata: tuple[object, ...] = ()  # from pydantic, of any type
    field: FieldInfo | None = None

    @property
    def about(self) -> str:
        chooser = _chooser((*self.metadata, *_metadata(self.annotation)))
        if chooser is not None and chooser.about:
            return chooser.about
        return (self.field.description or "") if self.field else ""

    @cached_property
    def spec(self) -> type[Spec] | None:
        """The spec class of the value, chosen by its `kind` if it has one; None for plain values and
        containers.
        """
        if chooser := _chooser((*self.metadata, *_metadata(self.annotation))):
            return chooser.spec_of(self.value if isinstance(self.value, Mapping) else {})
        found = [arm for arm in _arms(self.annotation) if isinstance(arm, type) and issubclass(arm, Spec)]
        return found[0] if found else None

    def down(self, part: str) -> "FieldPlace | None":
        """The part `part` of this value; None if the type has no such part."""
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
        """The direct parts of this value: a spec's fields or a mapping's items."""
        spec = self.spec
        parts = spec.model_fields if spec else self.value if isinstance(self.value, Mapping) else ()
        for part in parts:
            place = self.down(str(part))
            if place is not None:
                yield place

    def choices(self) -> list[str]:
        """The words that the value may be, if it is chosen from a list."""
        words = [
            str(word)
            for arm in _arms(self.annotation)
            if get_origin(arm) is Literal
            for word in get_args(arm)
        ]
        return ["true", "false"] if self.annotation is bool else words

    def type_text(self) -> str:
        """The type for people: int, number, text, list, or the words to choose from."""
        return " or ".join(dict.fromkeys(_type_text(arm) for arm in _arms(self.annotation)))


def _item(name: str, annotation: Form, value: Given) -> FieldPlace:
    if get_origin(annotation) is Annotated:
        kind, *metadata = get_args(annotation)
        return FieldPlace(name, kind, value, tuple(metadata))
    return FieldPlace(name, annotation, value)


def _chooser(metadata: Iterable[object]) -> SpecChooser | None:
    """The SpecChooser in a field's metadata, if any."""
    validators = (getattr(item, "func", None) for item in metadata)
    return next((one for one in validators if isinstance(one, SpecChooser)), None)


def _union(annotation: Form) -> tuple[Form, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _metadata(annotation: Form) -> tuple[object, ...]:
    """The metadata of an Annotated type, or of all in a union."""
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
    """Validate `document` as `kind`. Raises ConfigError for the first fault, with place, value, allowed
    values and the nearest name.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise explain(error, kind, place, document) from None


def explain(error: ValidationError, kind: type[Spec], place: str, document: Given = None) -> ConfigError:
    """Convert a pydantic error into a one-line ConfigError. Unknown keys come first because they often cause
    the others.

    With the faulty `document`, fields below a section whose `kind` chooses the spec are found as well.
    """
    faults = sorted(
        error.errors(), key=lambda fault: (fault["type"] != "extra_forbidden", _is_of_section(fault))
    )
    fault = faults[0]
    here, is_field = FieldPlace("", kind, document), True
    parts: list[str] = []
    for part in fault["loc"]:
        if _ARM.match(str(part)):
            continue
        below = here.down(str(part)) if is_field else None
        is_field = below is not None
        here = below or here
        if is_field or isinstance(part, int) or fault["type"] in ("extra_forbidden", "missing"):
            parts.append(str(part))  # other parts are pydantic's names of union members
    where = ".".join([place, *parts]).strip(".")
    if fault["type"] == "extra_forbidden":
        names = [below.name.rsplit(".", 1)[-1] for below in here.below()]
        near = nearest(str(fault["loc"][-1]), names)
        advice = f"did you mean {near}? " if near else ""
        return ConfigError(where, "no such key", f"{advice}known here: {', '.join(sorted(names))}")
    if fault["type"] == "missing":
        return ConfigError(where, "a value is required", f"give {where}=<value>")
    if isinstance(fault["input"], Mapping):  # a validator over several keys has the values in its message
        return ConfigError(where or "configuration", _sentence(fault["msg"]))
    if _is_of_section(fault):
        return ConfigError(
            where, f"must be a section (given: {_short(fault['input'])})", f"give {where}.<key>=<value>"
        )
    return ConfigError(where, f"{_sentence(fault['msg'])} (given: {_short(fault['input'])})", here.about)


_ARM = re.compile(r"(function-|constrained-|dict\[)")  # pydantic's name of a member of a union


def _is_of_section(fault: ErrorDetails) -> bool:
    """Whether a section was expected, which of a union's members is the least likely one."""
    return fault["type"] in ("model_type", "dict_type", "model_attributes_type")


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"


def _short(value: object) -> str:  # a user's value of any type
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
