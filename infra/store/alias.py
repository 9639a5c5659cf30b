"""Aliases: `student_a@best` is the artifact that was given that alias last, in
`{root}/aliases/<name>@<alias>.json`. Garbage collection keeps an alias's artifact (infra/store/gc.py).
"""

import dataclasses
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import quote

from atelier.engine.config.document import MOST_BYTES, opened, sealed
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, names, read_bytes, write_bytes

FOLDER = "aliases"
TEXTS = ("name", "alias", "kind", "fingerprint", "why")
LATEST = "latest"  # the newest of the name: never written
ALIAS = re.compile(r"(?!v\d+$)[a-z][a-z0-9_-]{0,39}")  # v1 is MLflow's name of a version


@dataclass(frozen=True)
class Alias:
    """`name@alias` is `kind/fingerprint`, since `since` (seconds, Unix), because of `why`."""

    name: str
    alias: str
    kind: str
    fingerprint: str
    why: str
    since: float

    def __str__(self) -> str:
        return f"{self.name}@{self.alias}"


def give_alias(root: str, record: Record, alias: str, why: str) -> Alias:
    """Point `<name of the record>@<alias>` to this record. Raises ConfigError for an invalid alias."""
    check_alias(alias)
    made = Alias(record.name, alias, record.kind, record.fingerprint, why, time.time())
    write_bytes(_place(root, record.name, alias), sealed(asdict(made)))
    return made


def check_alias(alias: str) -> None:
    """Raises ConfigError for an invalid or reserved alias."""
    if alias == LATEST or not ALIAS.fullmatch(alias):
        raise ConfigError(
            "alias",
            f"{alias!r} cannot be given",
            "use small letters, digits, - and _; latest and v1 are taken",
        )


def find_alias(root: str, name: str, alias: str) -> Alias | None:
    return read_alias(_place(root, name, alias))


def aliases(root: str) -> Iterator[Alias]:
    """All aliases, sorted by name. Raises DamageError for one that cannot be read."""
    for place in places(root):
        found = read_alias(place)
        if found is not None:
            yield found


def places(root: str) -> list[str]:
    """The files of all aliases."""
    return [join(root, FOLDER, file) for file in sorted(names(join(root, FOLDER)))]


def read_alias(place: str) -> Alias | None:
    """The alias in a file, None when it is missing. Raises DamageError when it cannot be read."""
    way_out = "`atelier pick` sets it again; `atelier gc --damaged` offers to remove it"
    fields = {field.name for field in dataclasses.fields(Alias)}
    try:
        found = opened(read_bytes(place, MOST_BYTES), place, "an alias", frozenset(fields))
        texts = [value for key, value in found.items() if key != "since"]
        if {*found} != fields or not all(isinstance(text, str) for text in texts):
            raise DamageError(f"{place}: not an alias (its fields differ)")
        if isinstance(found["since"], bool) or not isinstance(found["since"], int | float):
            raise DamageError(f"{place}: not an alias (since is not a time)")
        name, alias, kind, fingerprint, why = (str(found[f]) for f in TEXTS)
        return Alias(name, alias, kind, fingerprint, why, found["since"])
    except FileNotFoundError:
        return None
    except DamageError as damage:
        raise DamageError(str(damage), way_out) from None


def _place(root: str, name: str, alias: str) -> str:
    return join(root, FOLDER, f"{quote(name, safe='')}@{quote(alias, safe='')}.json")
