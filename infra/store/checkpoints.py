"""Checkpoints of trajectories as inputs of tasks: `<digits of the trajectory's fingerprint>@<step>`. Their
network and tokenizer are those of the trajectory's record.
"""

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from atelier.engine.config.base import Json, meaning_of
from atelier.engine.config.document import section_of, whole_of
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.own_code import codes_in, files_in, without_codes
from atelier.engine.config.record import Record
from atelier.engine.config.registry import ModelSpec, check_version, spec_class
from atelier.engine.io.storage import exists, join, names
from atelier.infra.dag import Reference
from atelier.infra.store.store import SHORT, Store
from atelier.infra.store.trajectory import (
    BIRTH,
    MANIFEST,
    checkpoint_steps,
    read_trajectory,
    trajectory_start,
)

WORD = re.compile(r"(?P<digits>[0-9a-f]{4,64})@(?P<step>\d{1,12})")
WHOLE = "full"  # kind of `trainable` whose checkpoints hold all weights


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint, perhaps one that no longer exists. `model`: with the vocabulary of its tokenizer;
    `sequence`: tokens of the rows of its training.
    """

    name: str
    trajectory: str
    step: int
    url: str
    model: ModelSpec
    tokenizer: Reference
    sequence: int


def checkpoint_word(trajectory: str, step: int) -> str:
    """The word that `checkpoint_called` finds."""
    return f"{trajectory}@{step}"


def checkpoint_called(store: Store, word: str, place: str) -> Checkpoint:
    """The checkpoint of a word. Raises ConfigError at `place` if no trajectory is meant, or if its
    checkpoints do not hold all weights of the network; DamageError if its record cannot be read.
    """
    found = WORD.fullmatch(word)
    if found is None:
        raise ConfigError(
            place, f"{word!r} is no checkpoint", "digits of a trajectory, @ and the step: 3f2a@400"
        )
    record, step = trajectory_called(store, found["digits"], place), int(found["step"])
    trainable = str(section_of(record.identity.get("trainable")).get("kind", WHOLE))
    if trainable != WHOLE:
        raise ConfigError(
            place,
            f"the checkpoints of {record.name} do not hold the whole network (trainable={trainable})",
            "examine the finished model",
        )
    tokenizer = store.find("tokenizer", record.parents.get("tokenizer", ""))
    if tokenizer is None or "vocab" not in tokenizer.summary:
        raise ConfigError(
            place, f"the tokenizer of {record.name} is not in the store", "run its training again"
        )
    return Checkpoint(
        name=record.name,
        trajectory=record.fingerprint,
        step=step,
        url=checkpoint_url(store, record.fingerprint, step),
        model=_model_of(record, place).resolved(tokenizer.summary["vocab"]),
        tokenizer=Reference(
            kind="tokenizer", fingerprint=tokenizer.fingerprint, name=tokenizer.name, node=""
        ),
        sequence=whole_of(record.identity.get("sequence")),
    )


def checkpoint_url(store: Store, trajectory: str, step: int) -> str:
    return join(store.address("trajectory", trajectory), "checkpoints", f"step-{step:08d}")


def is_there(store: Store, trajectory: str, step: int) -> bool:
    """Whether the checkpoint is complete and was not removed; its content is not checked."""
    return exists(join(checkpoint_url(store, trajectory, step), MANIFEST))


def trajectory_called(store: Store, digits: str, place: str) -> Record:
    """The record of the one trajectory whose fingerprint begins with these digits. Raises ConfigError at
    `place` if there is none, or several; DamageError if it cannot be read.
    """
    found = trajectories_with(store, digits)
    if len(found) != 1:
        way_out = "give more digits" if found else "`atelier watch` takes a run or a role as well"
        raise ConfigError(place, f"{len(found) or 'no'} trajectories begin with {digits}", way_out)
    try:
        record = read_trajectory(store, found[0])
    except FileNotFoundError:
        raise ConfigError(place, f"the trajectory {digits} has not begun", "wait for its training") from None
    if not record.fingerprint.startswith(digits):
        raise ConfigError(place, f"no trajectory begins with {digits}", "`atelier lineage` shows them")
    return record


def trajectories_with(store: Store, digits: str) -> list[str]:
    """Folders of the trajectories whose fingerprint begins with these digits."""
    every = names(join(store.root, "trajectory"))
    return sorted(name for name in every if len(name) == SHORT and name.startswith(digits[:SHORT]))


def last_steps(store: Store, trajectories: Iterable[str]) -> dict[str, float]:
    """Of trajectories that continue one another, the trunk first, those that have begun, each with its last
    step that counts: where the next one branches off.
    """
    found: dict[str, float] = {}
    for trajectory in trajectories:
        with suppress(FileNotFoundError, DamageError):  # `checkpoint_called` names a damaged one
            record = read_trajectory(store, trajectory)
            if "trunk" in record.parents:
                begun = trajectory_start(record)
                found = {other: min(last, begun) for other, last in found.items()}
        if exists(join(store.address("trajectory", trajectory), BIRTH)):
            found[trajectory] = math.inf
    return found


def steps_there(store: Store, trajectories: Iterable[str]) -> dict[int, str]:
    """Steps with a complete checkpoint, each with its trajectory, of trajectories that continue one
    another.
    """
    found = {
        step: trajectory
        for trajectory, last in last_steps(store, trajectories).items()
        for step in checkpoint_steps(store.address("trajectory", trajectory))
        if step <= last and is_there(store, trajectory, step)
    }
    return dict(sorted(found.items()))


def _model_of(record: Record, place: str) -> ModelSpec:
    """The spec of a trajectory's network, its vocabulary open. Raises ConfigError for a kind that this code
    does not have, or another version of it.
    """
    fields: Mapping[str, Json] = section_of(record.identity.get("model"))
    given = {key: value for key, value in fields.items() if key not in ("version", "vocab")}
    where = f"{place}: the model of {record.name}"
    try:
        kind = spec_class("model", str(fields.get("kind", "")))
    except ValueError as error:
        raise ConfigError(where, str(error)) from None
    spec = cast(
        ModelSpec, meaning_of(kind, {"vocab": "auto", **cast("dict[str, Json]", without_codes(given))}, where)
    )
    check_version(fields.get("version", 1), spec, where, record.name, record.provenance.get("commit", ""))
    if dict(codes_in(fields)) != dict(codes_in(spec.as_identity())):
        problem = f"is of other code of kind {spec.kind}, in one of its files: {files_in(fields)}"
        raise ConfigError(where, problem, "take that code back, or train again")
    return spec
