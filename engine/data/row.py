"""Columns of a source's rows, and the reason if a value is not text."""

from dataclasses import dataclass

from atelier.engine.config.base import Json
from atelier.engine.config.error import printable


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column, or field, of a source's rows: the first of `names` that exists."""

    names: tuple[str, ...]
    is_needed: bool = True
    may_be_number: bool = False
    is_list: bool = False  # a list of objects instead of text


def text_problem(line: dict[str, Json], wanted: str) -> str:
    """The reason why the field `wanted` of a line is not text; '' if it is."""
    if wanted not in line:
        return f"field '{wanted}' is missing; fields there: {fields_of(line)}"
    text = line[wanted]
    if not isinstance(text, str):
        return f"field '{wanted}' is {kind_of(text)}, not text; fields there: {fields_of(line)}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"field '{wanted}' holds half of a surrogate pair at character {error.start}, which is not text"
        )
    return ""


def fields_of(line: dict[str, Json]) -> str:
    """The names of a line's fields, for an error; the first and the last if there are many."""
    return printable(", ".join(sorted(line))) or "none"


def kind_of(value: Json) -> str:
    """The kind of a JSON value, in words for an error."""
    if isinstance(value, bool):
        return "true or false"
    kinds = {type(None): "null", int: "a number", float: "a number", str: "text", list: "a list"}
    return kinds.get(type(value), "an object")
