"""Trajectories in the store: records, code maps and checkpoints, and the step from which a training would
continue.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

from atelier.engine.config.document import (
    MOST_BYTES,
    check_as,
    parse_object,
    section_of,
    whole_of,
    without_digest,
)
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.record import FileEntry, Provenance, Record
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.config.trajectory import VERSION, Segment
from atelier.engine.io.storage import (
    exists,
    join,
    names,
    read_bytes,
    read_object,
    read_text,
    remove,
    verify,
    write_bytes,
)
from atelier.infra.code.code_change import Map, digest_of
from atelier.infra.store.conditional_create import create_exclusive
from atelier.infra.store.lease import LOG
from atelier.infra.store.store import Store

BIRTH = "trajectory.json"
MANIFEST = "manifest.json"  # of a checkpoint
SITE = "site"  # for trainings at several sites: the site of this store
WAY_OUT = "the command that trained it writes it again; `atelier gc --damaged` offers to remove it"
STEP = re.compile(r"step-(\d{8})")


def checkpoint_steps(address: str) -> list[int]:
    """Steps of the committed checkpoints of a trajectory, sorted; their content is not checked."""
    return sorted(
        int(match.group(1)) for name in names(join(address, "checkpoints")) if (match := STEP.fullmatch(name))
    )


def checkpoint_damage(address: str, step: int) -> str:
    """The damage of a checkpoint, with the file; '' if it is intact. Reads every byte."""
    folder = join(address, "checkpoints", f"step-{step:08d}")
    place = join(folder, MANIFEST)
    try:
        text = without_digest(read_bytes(place, MOST_BYTES), place)
        files = parse_object(text, place, what := "a checkpoint's manifest").get("files")
        if not isinstance(files, list):
            raise DamageError(f"{place}: not {what} (it lists no files)")
        for file in files:
            entry = check_as(FileEntry, section_of(file), place, what)
            verify(join(folder, entry.path), entry)
    except DamageError as damage:
        return str(damage)
    except FileNotFoundError:
        return f"{place}: missing"
    except OSError as error:
        return f"{folder}: cannot be read ({error.strerror or error})"
    return ""


def last_checkpoint(store: Store, model: Record, place: str) -> str:
    """URL of the last checkpoint of a model's training. Raises ConfigError at `place` if it has none."""
    trained, step = model.parents.get("trajectory"), model.identity.get("step")
    if trained and isinstance(step, int):
        address = store.address("trajectory", trained)
        if step in checkpoint_steps(address):
            return join(address, "checkpoints", f"step-{step:08d}")
    raise ConfigError(
        place,
        f"grown, but {model.name} has no final checkpoint with optimiser states",
        "optimizer=dropped; trainings with train.keep above 0 have one, converted models do not",
    )


@dataclass(frozen=True)
class TrajectoryState:
    """Checkpoint steps of a role's training in the store, and its start and end step."""

    steps: tuple[int, ...]
    start: int
    end: int

    @property
    def newest(self) -> int | None:
        return self.steps[-1] if self.steps else None

    def before(self, step: int) -> int:
        """The newest checkpoint at or before `step`; 0 = from initialisation."""
        return max([s for s in self.steps if s <= step], default=0)


def trajectory_state(
    store: Store, segments: list[Segment], whole: list[Segment] | None = None
) -> TrajectoryState:
    """Checkpoint steps of `segments`; start and end are those of `whole`, by default the same segments. A
    finished model without segments has no checkpoints, start 0 and end 0.
    """
    whole = whole or segments
    if not whole:
        return TrajectoryState(steps=(), start=0, end=0)
    steps: set[int] = set()
    for segment in segments:
        found = checkpoint_steps(store.address("trajectory", segment.fingerprint))
        steps |= {
            step
            for step in found
            if segment.start < step <= segment.end or (step == segment.start and segment is whole[0])
        }
    return TrajectoryState(steps=tuple(sorted(steps)), start=whole[0].start, end=whole[-1].end)


def segment_addresses(
    store: Store, segments: list[Segment], fences: Mapping[str, int] | None = None
) -> tuple[SegmentAddress, ...]:
    """The segments as entries of a run file; `fences` are those of the held leases, by address."""
    addresses = [(segment, store.address("trajectory", segment.fingerprint)) for segment in segments]
    return tuple(
        SegmentAddress(
            fingerprint=segment.fingerprint,
            url=address,
            start=segment.start,
            end=segment.end,
            attempt=(fences or {}).get(address, 1),
            is_leased=address in (fences or {}),
        )
        for segment, address in addresses
    )


def read_trajectory(store: Store, fingerprint: str) -> Record:
    """A trajectory's record, written when it began. Raises DamageError when it cannot be read."""
    place = join(store.address("trajectory", fingerprint), BIRTH)
    try:
        record = Record.read(read_bytes(place, MOST_BYTES), place)
    except DamageError as damage:
        raise DamageError(str(damage), WAY_OUT) from None
    if record.kind != "trajectory" or not record.fingerprint.startswith(fingerprint):
        raise DamageError(f"{place}: is the record of another trajectory", WAY_OUT)
    return record


def trajectory_start(trajectory_record: Record) -> int:
    """The step after which a trajectory's own steps begin."""
    identity = trajectory_record.identity
    return whole_of(identity.get("trunk_step", identity.get("start")))


def claim_site(store: Store, fingerprint: str, site: str) -> None:
    """Record the site whose trajectory is in this store. Raises ConfigError if it is another site: two sites
    in one store would wait for each other's lease.
    """
    place = join(store.address("trajectory", fingerprint), SITE)
    if not create_exclusive(place, site.encode()) and (other := read_text(place)) != site:
        raise ConfigError(
            "train.link.site",
            f"{site}, but this store has the training of site {other}",
            f"use a store for each site: ATELIER_ROOT=<folder of {site}>",
        )


def register_trajectory(
    store: Store, name: str, segment: Segment, provenance: Provenance, code: Map | None = None
) -> None:
    """Write a trajectory's record before training starts at its address, and beside it the code map of the
    present code, under its digest. A readable record stays: it depends only on facts that every process
    training this trajectory knows.
    """
    address = store.address("trajectory", segment.fingerprint)
    if code is not None and not exists(code_place(address, digest_of(code))):
        create_exclusive(code_place(address, digest_of(code)), json.dumps(code, sort_keys=True).encode())
    place = join(address, BIRTH)
    state = _record_state(store, segment.fingerprint)
    if state == "whole":
        return
    record = Record(
        kind="trajectory",
        name=name,
        fingerprint=segment.fingerprint,
        version=VERSION,
        identity=segment.identity,
        parents=segment.parents,
        provenance=provenance,
    )
    text = record.sealed().text().encode()
    if state == "damaged":
        write_bytes(place, text)
    else:
        create_exclusive(place, text)


def repair_trajectory(store: Store, name: str, segment: Segment, provenance: Provenance) -> None:
    """`register_trajectory`, only when its record exists but cannot be read."""
    if _record_state(store, segment.fingerprint) == "damaged":
        register_trajectory(store, name, segment, provenance)


def _record_state(store: Store, fingerprint: str) -> Literal["whole", "damaged", "missing"]:
    try:
        read_trajectory(store, fingerprint)
        return "whole"
    except FileNotFoundError:
        return "missing"
    except DamageError:
        return "damaged"


def code_place(address: str, digest: str) -> str:
    """Path of a code map of a trajectory."""
    return join(address, f"code-{digest}.json")


def code_at(address: str, step: int) -> str | None:
    """Digest of the code that computed the checkpoint of `step`; '' when not recorded, None when its manifest
    cannot be read: a training skips such a checkpoint.
    """
    place = join(address, "checkpoints", f"step-{step:08d}", MANIFEST)
    with suppress(OSError, DamageError):
        codes = read_object(place, "a checkpoint's manifest").get("codes", [])
        return (str(codes[-1]) if codes else "") if isinstance(codes, list) else None
    return None


def steps_kept(store: Store, segments: list[Segment], step: int, state: str) -> set[int]:
    """The steps for which a checkpoint of `step` has a state of this name; empty if its manifest is
    unreadable.
    """
    segment = next((one for one in segments if one.start < step <= one.end), None)
    if segment is None:
        return set()
    address = store.address("trajectory", segment.fingerprint)
    place = join(address, "checkpoints", f"step-{step:08d}", MANIFEST)
    with suppress(OSError, DamageError):
        values = read_object(place, "a checkpoint's manifest").get("values", [])
        keys = [entry[0] for entry in values if isinstance(entry, list)] if isinstance(values, list) else []
        return {int(str(key[1])) for key in keys if isinstance(key, list) and key[0] == state and key[1:]}
    return set()


def read_code(address: str, digest: str) -> Map:
    """A code map of a trajectory; {} when it is missing or does not match its digest."""
    with suppress(OSError, DamageError):
        found = cast(Map, read_object(code_place(address, digest), "a code map"))
        if digest_of(found) == digest:
            return found
    return {}


def begin_again(store: Store, fingerprint: str) -> None:
    """Delete everything under a trajectory's address but its lease log. The caller holds the lease."""
    address = store.address("trajectory", fingerprint)
    for name in names(address):
        if name != LOG:
            remove(join(address, name))
