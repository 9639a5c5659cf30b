"""Translate overrides from Python to command-line words: strings as on the command line, or keys with values.

Each value is written so that Hydra reads the same value: text stays text (`"1e-3"`, `"true"`, `"a,b"`),
numbers stay numbers, None is null, lists and tuples are lists, a mapping is the keys below its key. `${key}`
in a text is a reference to that key. The value of a group is an option's name, or a list of names. Resolvers,
`_target_` and settings of Hydra are refused, as on the command line.
"""

import os
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import TypeAlias

from atelier.engine.config.error import ConfigError
from atelier.flows.run import catalog
from atelier.flows.run.overrides import shown

Value: TypeAlias = (
    "str | int | float | bool | os.PathLike[str] | Sequence[Value] | Mapping[str, Value] | None"
)
KEY = re.compile(r"\+{0,2}(?P<key>[A-Za-z_][\w./-]*)(?P<package>@[\w.]+)?")
NAME = re.compile(r"[\w.-]+")  # of an option
PLAIN = re.compile(r"[A-Za-z_/][\w/.-]*", re.ASCII)  # text that needs no quotes in Hydra
NOT_TEXT = ("true", "false", "null", "nan", "inf")
WAY_OUT = "text, a number, True, False, None, a path, or a list or mapping of them"
MOST_NESTED = 20


def as_words(overrides: Sequence[str | Mapping[str, Value]], values: Mapping[str, Value]) -> list[str]:
    """The words of a command line, in order, `values` last. Raises ConfigError for a key or value that cannot
    be written as one.
    """
    words: list[str] = []
    for one in (*overrides, values):
        if isinstance(one, str):
            words.append(one)
        elif isinstance(one, Mapping):
            for key, value in one.items():
                words += _words(key, value, 0)
        else:
            raise ConfigError(
                "overrides", f"{shown_as(one)} is not an override", "give 'key=value' or {'key': value}"
            )
    return words


def _words(key: object, value: Value, depth: int) -> list[str]:
    match = KEY.fullmatch(key) if isinstance(key, str) else None
    if match is None:
        raise ConfigError("overrides", f"{shown_as(key)} is not a key", "write {'train.steps': 20}")
    name = match[0]
    is_group = "." not in match["key"] and catalog.is_group(match["key"].strip("/"))
    if isinstance(value, Mapping) and value:
        if match["package"] or depth > MOST_NESTED:
            raise ConfigError(
                name, f"takes no mapping (given: {shown_as(value)})", "name its keys one by one"
            )
        return [word for below, one in value.items() for word in _words(f"{name}.{below}", one, depth + 1)]
    if is_group:
        if isinstance(value, Mapping):
            return []  # no key below it
        return [f"{name}={_options(name, value)}"]
    return [f"{name}={text_of(value, name)}"]


def _options(name: str, value: Value) -> str:
    """The option of a group, or several in brackets; `compose` checks that they exist."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        for one in value:
            if not isinstance(one, str) or not NAME.fullmatch(one):
                raise ConfigError(name, f"there is no option {shown_as(one)}", "give the names of options")
        return f"[{','.join(map(str, value))}]"
    raise ConfigError(name, f"is a group, not a value (given: {shown_as(value)})", "give an option's name")


def text_of(value: Value, place: str, depth: int = 0) -> str:
    """`value` in Hydra's syntax. Raises ConfigError at `place` for a value of another type."""
    if depth > MOST_NESTED:
        raise ConfigError(place, f"is nested deeper than {MOST_NESTED}", "give one value a key")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Integral):
        return _number(int(value), place)
    if isinstance(value, Real):
        return float.__repr__(float(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return value if is_plain(value) else quoted(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(text_of(one, place, depth + 1) for one in value)}]"
    if isinstance(value, Mapping):
        strange = [key for key in value if not is_plain(key)]
        if strange:
            raise ConfigError(place, f"{shown_as(strange[0])} is not a key", "keys are names")
        return f"{{{','.join(f'{key}:{text_of(one, place, depth + 1)}' for key, one in value.items())}}}"
    raise ConfigError(place, f"cannot be a {type(value).__name__} (given: {shown_as(value)})", WAY_OUT)


def is_plain(text: str) -> bool:
    """Whether Hydra reads it as text without quotes."""
    return PLAIN.fullmatch(text) is not None and text.lower() not in NOT_TEXT


def quoted(text: str) -> str:
    """Text in Hydra's quotes, in which a backslash is special only before a quote."""
    escaped = re.sub(r"(\\*)'", lambda found: 2 * found[1] + "\\'", text)
    ends = re.search(r"\\*\Z", escaped)
    return f"'{escaped}{ends[0] if ends else ''}'"


def _number(value: int, place: str) -> str:
    try:
        return str(value)
    except ValueError:
        raise ConfigError(place, "a number has too many digits", "give a shorter one") from None


def shown_as(value: object) -> str:
    """`value` for an error."""
    return shown(value if isinstance(value, str | int | float | bool | None) else repr(value)[:200])
