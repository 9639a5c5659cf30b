"""What the store holds of trajectories: their birth records and checkpoints; and from where a training would
go on.
"""

import re
from dataclasses import dataclass

from engine.spec.record import Record
from engine.spec.run import Segment
from engine.spec.trajectory import VERSION, Part
from engine.storage import exists, join, names, read_bytes
from infra.exclusive import create_exclusive
from infra.store import Store

BIRTH = "trajectory.json"
STEP = re.compile(r"step-(\d{8})")


def checkpoint_steps(address: str) -> list[int]:
    """Steps of the committed checkpoints under a trajectory, sorted; their content is not looked at."""
    return sorted(
        int(match.group(1)) for name in names(join(address, "checkpoints")) if (match := STEP.fullmatch(name))
    )


@dataclass(frozen=True)
class Standing:
    """How far a role's training has come in the store."""

    steps: tuple[int, ...]
    start: int
    end: int

    @property
    def newest(self) -> int | None:
        return self.steps[-1] if self.steps else None

    def before(self, step: int) -> int:
        """The newest checkpoint at or before `step`; 0 = from initialisation."""
        return max([s for s in self.steps if s <= step], default=0)


def standing(store: Store, parts: list[Part]) -> Standing:
    steps: set[int] = set()
    for part in parts:
        found = checkpoint_steps(store.address("trajectory", part.fingerprint))
        steps |= {
            step
            for step in found
            if part.start < step <= part.end or (step == part.start and part is parts[0])
        }
    return Standing(steps=tuple(sorted(steps)), start=parts[0].start, end=parts[-1].end)


def segments(store: Store, parts: list[Part]) -> tuple[Segment, ...]:
    return tuple(
        Segment(
            fingerprint=p.fingerprint,
            url=store.address("trajectory", p.fingerprint),
            start=p.start,
            end=p.end,
        )
        for p in parts
    )


def read_birth(store: Store, fingerprint: str) -> Record:
    """The record that a trajectory was begun with."""
    place = join(store.address("trajectory", fingerprint), BIRTH)
    return Record.read(read_bytes(place), place)


def give_birth(store: Store, name: str, part: Part, provenance: dict[str, object]) -> None:
    """Write a trajectory's record before anything is trained under its address; the first one stays."""
    place = join(store.address("trajectory", part.fingerprint), BIRTH)
    if exists(place):
        return
    record = Record(
        kind="trajectory",
        name=name,
        fingerprint=part.fingerprint,
        version=VERSION,
        identity=part.identity,
        parents=part.parents,
        provenance=dict(provenance),
    )
    create_exclusive(place, record.sealed().text().encode())
