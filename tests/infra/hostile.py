"""Small files of a store with damaged or malicious content, drawn from a seed."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atelier.engine.config.base import fingerprint
from atelier.engine.config.document import DIGEST, sealed
from atelier.engine.config.record import identify

ESCAPE = "\x1b[2J\x07\x00\u202e\x9b\r"
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    1e300,
    "",
    ESCAPE,
    "../../etc",
    [],
    [[]],
    {},
    {"a": []},
    [ESCAPE],
)

Damage = Callable[[Path, random.Random], None]


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def truncate(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size))


def empty(file: Path, rng: random.Random) -> None:
    file.write_bytes(b"")


def overwrite(file: Path, rng: random.Random) -> None:
    """What no reader of JSON should take, or get lost in."""
    texts = (
        "[" * 200_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "9" * 400,
        "1e999",
        "NaN",
        '"\\ud800"',
        "[]",
        "7",
    )
    file.write_bytes(rng.choice([*(text.encode() for text in texts), b"\xff\xfe{}", b"\0" * 4096]))


def pipe(file: Path, rng: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def device(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def folder(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def forge(file: Path, rng: random.Random) -> None:
    """One value of another type or size, and digests that agree with it."""
    if file.suffix != ".json":
        return flip(file, rng)
    document = json.loads(file.read_bytes())
    if not document:
        return flip(file, rng)
    parts = [document]
    while (inner := [v for v in parts[-1].values() if isinstance(v, dict) and v]) and rng.random() < 0.6:
        parts.append(rng.choice(inner))
    parts[-1][rng.choice(list(parts[-1]))] = rng.choice(ODD)
    file.write_bytes(resealed(document))


def resealed(document: dict[str, Any]) -> bytes:
    """The document with the digests that an honest writer would have given it."""
    try:
        if isinstance(document.get("record"), dict):
            document["record"] = json.loads(resealed(document["record"]))
        if "files" in document and DIGEST in document:
            made = (document["kind"], document["version"], document["identity"], document["parents"])
            document["fingerprint"] = identify(*made)
            document[DIGEST] = fingerprint(document | {DIGEST: ""})
        elif DIGEST in document:
            return sealed(document)
    except (KeyError, TypeError, ValueError):
        pass
    return json.dumps(document).encode()


DAMAGES: tuple[Damage, ...] = (flip, truncate, empty, overwrite, pipe, device, folder, forge, forge, forge)
