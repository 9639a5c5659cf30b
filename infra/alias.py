"""Aliases: `student_a@best` is whatever artifact was given that alias last; it lies in
`{root}/aliases/<name>@<alias>.json`. What an alias means is kept while it means it (infra.garbage).
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import quote

from engine.spec.error import AtelierError, ConfigError
from engine.spec.record import Record
from engine.storage import join, names, read_bytes, write_bytes

FOLDER = "aliases"
LATEST = "latest"  # the newest of the name: never written
ALIAS = re.compile(r"(?!v\d+$)[a-z][a-z0-9_-]{0,39}")  # v1 is MLflow's word for a version


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
    """Let `<name of the record>@<alias>` mean this record from now on. ConfigError for a bad alias."""
    check_alias(alias)
    made = Alias(record.name, alias, record.kind, record.fingerprint, why, time.time())
    write_bytes(_place(root, record.name, alias), json.dumps(asdict(made), sort_keys=True).encode())
    return made


def check_alias(alias: str) -> None:
    if alias == LATEST or not ALIAS.fullmatch(alias):
        raise ConfigError(
            "alias",
            f"{alias!r} cannot be given",
            "use small letters, digits, - and _; latest and v1 are taken",
        )


def find_alias(root: str, name: str, alias: str) -> Alias | None:
    return _read(_place(root, name, alias))


def aliases(root: str) -> Iterator[Alias]:
    """All that were given, by name."""
    for file in sorted(names(join(root, FOLDER))):
        found = _read(join(root, FOLDER, file))
        if found is not None:
            yield found


def _read(place: str) -> Alias | None:
    try:
        return Alias(**json.loads(read_bytes(place)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise AtelierError(f"{place}: not an alias ({error}); `atelier pick` gives it again") from None


def _place(root: str, name: str, alias: str) -> str:
    return join(root, FOLDER, f"{quote(name, safe='')}@{quote(alias, safe='')}.json")
