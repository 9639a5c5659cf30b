"""Read the keys of a foreign config.json: each value is checked when it is read, and every key that is read
counts as known. Torch-free.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError

ARCHITECTURES, TYPE = "architectures", "model_type"
Config = Mapping[str, Json]
Fields = dict[str, Json]  # fields of the model
Reader = Callable[[Config], Fields]  # fields from some keys; keys that it reads count as understood


class ReadConfig(dict[str, Json]):
    """A config that records which keys were read."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.asked = {TYPE, ARCHITECTURES}

    def get(self, key: str, default: Json = None) -> Json:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked.add(key)
        return super().get(key, default)


def number(value: Json) -> Json:
    """The value if it is a number. Raises ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return value


def flag(value: Json) -> Json:
    """The value if it is true or false. Raises ValueError otherwise."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def given(config: Config, name: str, default: Json = None, read: Callable[[Json], Json] = number) -> Json:
    """The value of a key, or `default` if absent; null is allowed if `default` is None. Raises ConfigError if
    `read` refuses it.
    """
    value = config.get(name, default)
    if value is None and default is None:
        return None
    try:
        return read(value)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(name, f"{short(value)} is not understood") from None


class Key(NamedTuple):
    """A config key that maps to one field. `default`: meaning of its absence. `read` and `write` convert the
    value to that of the field and back.
    """

    name: str
    field: str
    default: Json = None
    read: Callable[[Json], Json] = number
    write: Callable[[Json], Json] = lambda value: value


def short(value: Json) -> str:
    return text if len(text := repr(value)) <= 40 else f"{text[:37]}..."
