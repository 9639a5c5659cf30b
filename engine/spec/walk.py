"""Which spec stands at a place of a document: through fields, containers, unions and kinds that are chosen by
name.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from atelier.engine.spec.base import Spec
from atelier.engine.spec.registry import group_of, kinds, spec_class


@dataclass(frozen=True)
class Place:
    """One value of a document: its dotted name, its type, and what is known of the field that holds it."""

    name: str
    annotation: Any
    value: Any = None
    metadata: tuple[Any, ...] = ()
    field: FieldInfo | None = None

    @property
    def about(self) -> str:
        return (self.field.description or "") if self.field else ""

    def spec(self) -> type[Spec] | None:
        """The spec class of the value; where a kind chooses it, that kind's. None for plain values and
        containers.
        """
        found = [arm for arm in _arms(self.annotation) if isinstance(arm, type) and issubclass(arm, Spec)]
        own = self.annotation.__metadata__ if get_origin(self.annotation) is Annotated else ()
        group = group_of((*self.metadata, *own))
        if not found or not group:
            return found[0] if found else None
        kind = str(self.value.get("kind", "")) if isinstance(self.value, Mapping) else ""
        return spec_class(group, kind) if kind in kinds(group) else None

    def down(self, part: str) -> "Place | None":
        """The place called `part` below this one; None when the type has no such part."""
        value = self.value.get(part) if isinstance(self.value, Mapping) else None
        name = f"{self.name}.{part}".strip(".")
        spec = self.spec()
        if spec is not None:
            field = spec.model_fields.get(part)
            return Place(name, field.annotation, value, tuple(field.metadata), field) if field else None
        for arm in _arms(self.annotation):
            if get_origin(arm) is dict:
                return _item(name, get_args(arm)[1], value)
        return None

    def below(self) -> Iterator["Place"]:
        """The places one step down: a spec's fields, a mapping's items."""
        spec = self.spec()
        parts = spec.model_fields if spec else self.value if isinstance(self.value, Mapping) else ()
        for part in parts:
            place = self.down(str(part))
            if place is not None:
                yield place

    def choices(self) -> list[str]:
        """The words that the value may be, when there are such."""
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


def _item(name: str, annotation: Any, value: Any) -> Place:
    if get_origin(annotation) is Annotated:
        return Place(name, annotation.__origin__, value, tuple(annotation.__metadata__))
    return Place(name, annotation, value)


def _arms(annotation: Any) -> tuple[Any, ...]:
    arms = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(arm.__origin__ if get_origin(arm) is Annotated else arm for arm in arms)


def _type_text(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return "|".join(str(word) for word in get_args(annotation))
    plain = {int: "int", float: "number", str: "text", bool: "true|false"}
    if annotation in plain:
        return plain[annotation]
    return "list" if get_origin(annotation) in (list, tuple) else "section"
