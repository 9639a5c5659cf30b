"""Reading the keys of a config.json that is not ours: each value is checked where it is read, and a key that
is read is known. Torch-free.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError

ARCHITECTURES, TYPE = "architectures", "model_type"
Config = Mapping[str, Json]
Fields = dict[str, Json]  # of the model
Reader = Callable[[Config], Fields]  # the fields that some keys say; a key that it looks up is understood


class ReadConfig(dict[str, Json]):
    """A config that keeps which keys it was asked for."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.asked = {TYPE, ARCHITECTURES}

    def get(self, key: str, default: Json = None) -> Json:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked.add(key)
        return super().get(key, default)


def number(value: Json) -> Json:
    """A value that is a number. Raises ValueError for others."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return value


def flag(value: Json) -> Json:
    """A value that is true or false. Raises ValueError for others."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def given(config: Config, name: str, default: Json = None, read: Callable[[Json], Json] = number) -> Json:
    """The value of a key, `default` where it is not there; null where that is the default. Raises ConfigError
    for one that `read` does not take.
    """
    value = config.get(name, default)
    if value is None and default is None:
        return None
    try:
        return read(value)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(name, f"{short(value)} is not understood") from None


class Key(NamedTuple):
    """A key of a config that one field says; `default`: what its absence means. `read` and `write` turn a
    value into that of the field and back.
    """

    name: str
    field: str
    default: Json = None
    read: Callable[[Json], Json] = number
    write: Callable[[Json], Json] = lambda value: value


def short(value: Json) -> str:
    return text if len(text := repr(value)) <= 40 else f"{text[:37]}..."
