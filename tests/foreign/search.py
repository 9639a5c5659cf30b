"""Foreign input drawn from a seed: file names, encodings, configurations, tokenizers, paths, environments.

Each file of kinds/ draws one sort of them and checks what Atelier does with it. A kind has

    COUNT                 cases that `make test` draws in at most two seconds (SLOW = True: `make verify`)
    draw(rng) -> dict     one case, JSON alone, so that a find can be kept in found/<kind>.jsonl
    check(case, folder)   tries the case in an empty folder; returns how it ended ("works", "refused");
                          raises AssertionError where the outcome is wrong
    broken()              context manager: Atelier with one fault put back, which the drawn cases must find
"""

import importlib
import json
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

HERE = Path(__file__).parent
SEED = 60
Case = dict[str, Any]


class Kind(Protocol):
    COUNT: int

    def draw(self, rng: random.Random) -> Case: ...

    def check(self, case: Case, folder: Path) -> str: ...

    def broken(self) -> AbstractContextManager[object]: ...


def names() -> list[str]:
    return sorted(path.stem for path in (HERE / "kinds").glob("*.py"))


def kind(name: str) -> Kind:
    return cast(Kind, importlib.import_module(f"tests.foreign.kinds.{name}"))


def is_slow(name: str) -> bool:
    return getattr(kind(name), "SLOW", False)


def drawn(name: str, seed: int = SEED) -> Iterator[Case]:
    """Endlessly many cases; case n depends on (seed, name, n) alone."""
    number = 0
    while True:
        yield kind(name).draw(random.Random(f"{seed}/{name}/{number}"))
        number += 1


def found(name: str) -> list[Case]:
    """Cases that once ended wrongly. Their key `was` says how; it is no part of the case."""
    path = HERE / "found" / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [{key: value for key, value in json.loads(line).items() if key != "was"} for line in lines]
