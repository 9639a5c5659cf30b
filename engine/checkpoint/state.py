"""A checkpoint's content as flat lists: tensors by dotted name, Python values by path.

Values survive JSON exactly; others are refused. Names of values that differ between ranks contain `rank.<r>.`
with the owning rank; everything else is equal on all ranks.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, cast

import torch

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError

Keys = tuple[str | int, ...]
Plain: TypeAlias = (
    bool | int | float | str | list["Plain"] | tuple["Plain", ...] | dict["Plain", "Plain"] | None
)
Tree: TypeAlias = torch.Tensor | Plain | Mapping[str | int, "Tree"]
State = Mapping[str, Tree]
Nested = dict[Any, Any]  # Tree without tensors; readers know its types
Value = tuple[Keys, Json]  # encoded

_OWNER = re.compile(r"(?:^|\.)rank\.(\d+)(?:\.|$)")
_TUPLE, _FLOAT, _DICT = "!tuple", "!float", "!dict"


def dotted(path: Iterable[str | int]) -> str:
    return ".".join(str(part) for part in path)


def owner(name: str) -> int | None:
    """The rank that owns the value `name` alone; None if all ranks have the same value."""
    found = _OWNER.search(name)
    return int(found[1]) if found else None


def tensors_of(state: State) -> dict[str, torch.Tensor]:
    """Every tensor of a nested dict by dotted name, not copied.

    Raises ConfigError if two tensors have the same dotted name.
    """
    result: dict[str, torch.Tensor] = {}
    for path, leaf in _leaves(state):
        name = dotted(path)
        if not isinstance(leaf, torch.Tensor):
            continue
        if name in result:
            raise ConfigError(
                name, "two tensors of the state have this dotted name", "rename one of the keys"
            )
        result[name] = leaf
    return result


def values_of(state: State, rank: int) -> list[Value]:
    """Every Python value of a nested dict with its path, as JSON data.

    Raises ConfigError for duplicate names, another rank's values, and values that JSON would change.
    """
    values: list[Value] = []
    seen: set[str] = set()
    for path, leaf in _leaves(state):
        name = dotted(path)
        if name in seen:
            raise ConfigError(
                name, "two entries of the state have this dotted name", "rename one of the keys"
            )
        seen.add(name)
        if owner(name) not in (None, rank):
            raise ConfigError(
                name, f"belongs to another rank, but rank {rank} saves it", f"name it rank.{rank}.*"
            )
        if not isinstance(leaf, torch.Tensor):
            values.append((path, encode(leaf, name)))
    return values


def merged(parts: list[list[Value]]) -> list[Value]:
    """The values of all ranks as one list. Raises ConfigError if a value without rank in its name differs."""
    result: dict[Keys, Json] = {}
    first: dict[Keys, int] = {}
    for rank, values in enumerate(parts):
        for path, value in values:
            if path in result and repr(result[path]) != repr(value):
                numbers = f"{result[path]!r} on rank {first[path]}, {value!r} on rank {rank}"
                raise ConfigError(
                    dotted(path), f"differs between ranks: {numbers}", "name per-rank values rank.<r>.*"
                )
            result.setdefault(path, value)
            first.setdefault(path, rank)
    return list(result.items())


def nested(values: Iterable[Value]) -> Nested:
    """The nested dict whose flat form is `values`, without its tensors."""
    result: Nested = {}
    for path, value in values:
        branch = result
        for part in path[:-1]:
            branch = branch.setdefault(part, {})
        branch[path[-1]] = decode(value)
    return result


def _leaves(
    state: Mapping[str, Tree] | Mapping[str | int, Tree], prefix: Keys = ()
) -> Iterable[tuple[Keys, Tree]]:
    for key, value in state.items():
        if type(key) not in (str, int):
            raise ConfigError(
                dotted(prefix) or "state", f"key {key!r} is a {type(key).__name__}", "use str or int keys"
            )
        path = (*prefix, key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(cast(Mapping[str | int, Tree], value), path)
        else:
            yield path, value


def encode(value: Tree, name: str) -> Json:
    """`value` as JSON data that `decode` turns back into an equal value of the same type.

    Raises ConfigError, naming `name`, for a value that cannot be saved exactly.
    """
    kind = type(value)
    if value is None or type(value) is bool or type(value) is int:
        return value
    if type(value) is str:
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(name, f"{value!r} is not valid Unicode", "save bytes as a uint8 tensor")
        return value
    if type(value) is float:
        return _float(value, name)
    if type(value) is list:
        return [encode(item, name) for item in value]
    if type(value) is tuple:
        return {_TUPLE: [encode(item, name) for item in value]}
    if type(value) is dict:
        return {_DICT: [[encode(key, name), encode(item, name)] for key, item in value.items()]}
    if isinstance(value, torch.Tensor):
        raise ConfigError(
            name,
            "a tensor inside a list or tuple cannot be saved",
            "put it in a dict, under its own key",
        )
    raise ConfigError(
        name,
        f"a {kind.__module__}.{kind.__qualname__} cannot be saved exactly",
        "give a tensor, int, float, str, bool, None, list or tuple",
    )


def _float(value: float, name: str) -> Json:
    if math.isnan(value):
        raise ConfigError(name, "is NaN", "checkpoints store no NaN values")
    return value if math.isfinite(value) else {_FLOAT: repr(value)}


def decode(value: Json) -> Plain:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return cast(Plain, value)
    if _TUPLE in value:
        return tuple(decode(item) for item in cast(list[Json], value[_TUPLE]))
    if _FLOAT in value:
        return float(str(value[_FLOAT]))
    return {decode(key): decode(item) for key, item in cast(list[tuple[Json, Json]], value[_DICT])}
