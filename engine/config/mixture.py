"""The samples of a training: ordered input streams, mixed by the shares of its objectives and sources.
Torch-free.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Spec, Step
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.registry import Objective, ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule


class Phase(Spec):
    """New shares of the sources from a step on, such as better text while the learning rate decays (MiniCPM,
    2404.06395, section 5).
    """

    begin: Step = Field(gt=0, description="number of steps before the phase, or a share of all steps below 1")
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        min_length=1, description="new weights by source; the others keep theirs; 0 = not read"
    )

    def first_step(self, num_steps: int) -> int:
        """The first step of the phase in a training of `num_steps` steps."""
        return round(self.begin * num_steps) if self.begin < 1 else int(self.begin)


class SourceShares(Spec):
    """The weights of all sources from step `begin` on."""

    begin: int
    weights: dict[str, float]


def resolve_phases(
    weights: Mapping[str, float], phases: Mapping[str, Phase], num_steps: int, place: str = "data"
) -> tuple[SourceShares, ...]:
    """The phases after the first, in order, each with the weights of all sources; phases that change nothing
    are left out. Raises ConfigError for a phase that begins outside the training, at the step of another, or
    without any source.
    """
    found: list[tuple[int, str]] = []
    for name, phase in phases.items():
        begin = phase.first_step(num_steps)
        where = f"{place}.phases.{name}"
        if not 0 < begin < num_steps:
            raise ConfigError(
                f"{where}.begin",
                f"step {begin} is not within the {num_steps} steps",
                f"give a step from 1 to {num_steps - 1}, or a share below 1",
            )
        if same := [other for step, other in found if step == begin]:
            raise ConfigError(f"{where}.begin", f"step {begin}, as in {same[0]}", "give them two steps")
        found.append((begin, name))
    result: list[SourceShares] = []
    now = dict(weights)
    for begin, name in sorted(found):
        now |= phases[name].weights
        if not any(now.values()):
            raise ConfigError(f"{place}.phases.{name}.weights", "no source is left", "a weight above 0")
        if _normed(now) != _normed(result[-1].weights if result else weights):
            result.append(SourceShares(begin=begin, weights=dict(now)))
    return tuple(result)


Assignment = Literal["blocks", "exact", "batches"]


class Sharing(Spec):
    """Assignment of samples to sources, and passes over a source after which it stops."""

    assignment: Assignment = "blocks"
    epochs: dict[str, float] = Field(default={}, description="passes by source; others have no cap")

    @model_validator(mode="after")
    def _caps_are_exact(self) -> "Sharing":
        if self.epochs and self.assignment != "exact":
            raise ValueError(
                f"epochs of {', '.join(self.epochs)} are capped, but assignment is {self.assignment};"
                " data.assignment=exact knows the sample at which a source stops"
            )
        return self

    def identity(self, read: set[str], num_streams: int) -> dict[str, Json]:
        """Its part in the identity of a training of these sources: empty for blocks, and for one stream
        without a cap.
        """
        found: dict[str, Json] = {}
        if self.assignment != "blocks" and num_streams > 1:
            found["assignment"] = self.assignment
        if caps := {name: cap for name, cap in sorted(self.epochs.items()) if name in read}:
            found["epochs"] = caps
        return found


BLOCKS = Sharing()  # the default


def sharing_of(assignment: Assignment, epochs: Mapping[str, float]) -> Sharing:
    """The sharing among sources with these caps; a cap of 0 is none."""
    return Sharing(assignment=assignment, epochs={name: cap for name, cap in epochs.items() if cap})


def cap_in_rows(epochs: float, rows: int) -> int:
    """The samples of `epochs` passes over `rows` samples, rounded down, at least 1."""
    return max(1, int(Fraction(str(epochs)) * rows))


class Stream(Spec):
    """One input of a mixture: windows of packed documents, labelled examples (loss on the completion only),
    or the rows of an objective (a kind of engine/data/datasets).
    """

    input: str = Field(description="key of the input in `inputs`")
    weight: float = Field(default=1.0, ge=0)
    later: tuple[float, ...] = Field(default=(), description="its weight in each later phase")
    kind: str = "windows"
    rows: Objective | None = Field(default=None, description="objective whose fields define the rows")
    num_examples: int = Field(default=0, description="examples: number drawn; 0 = all")
    draw: int = Field(default=0, description="examples: number of the draw")
    epochs: float = Field(default=0.0, ge=0, description="passes over its rows at most; 0 = no cap")

    @property
    def source(self) -> str:
        """The text source of its rows."""
        return self.input.partition(".")[2]

    @property
    def name(self) -> str:
        """Its name in records: its source; for other rows than windows, also their kind."""
        name = self.source or self.input
        return name if self.kind == WINDOWS else f"{name}/{self.kind}"

    @property
    def phase(self) -> int:
        """The number of the first phase that reads it."""
        every = (self.weight, *self.later)
        return next((n for n, weight in enumerate(every) if weight), len(every))


class MixturePart(NamedTuple):
    """A part of the mixture: one kind of rows from one text source, or from all (None)."""

    kind: str
    source: str | None

    def has(self, stream: Stream) -> bool:
        return self.kind == stream.kind and self.source in (None, stream.source)


def parts_of(streams: Iterable[Stream], roles: Iterable[Role]) -> tuple[MixturePart, ...]:
    """The parts that objectives tell apart, numbered in this order: kinds of rows, and text sources if an
    objective names some. Empty if nothing is told apart.
    """
    streams = list(streams)
    has_kinds = any(stream.rows for stream in streams)
    has_sources = any(getattr(spec, "sources", ()) for role in roles for spec in role.objective.values())
    found = dict.fromkeys(
        MixturePart(stream.kind, stream.source if has_sources else None) for stream in streams
    )
    return tuple(found) if has_kinds or has_sources else ()


def in_order(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """Streams sorted by first phase, kind of rows, input and draw. A stream's samples depend on its index, so
    later phases must not change it.
    """
    return tuple(sorted(streams, key=lambda each: (each.phase, each.kind, each.input, each.draw)))


WINDOWS, EXAMPLES, CHAT = "windows", "examples", "chat"
MIXTURE = 2  # version of the draw among several streams
# kind of rows -> version of its rows, if not 1. Examples: no needless end tokens (2), encoded together with
# their prompt (3)
ROWS: dict[str, int] = {EXAMPLES: 3}


def row_specs(roles: Mapping[str, Role], prefix: str = "roles.") -> dict[str, ObjectiveSpec]:
    """The objective that defines the rows of each kind; windows need none.

    Finished models define none: their students do. Raises ConfigError if root roles define a kind
    differently, or if a student or finished teacher reads a kind that the root does not.
    """
    found = {name: _own(role) for name, role in roles.items()}
    moving = {name: role for name, role in roles.items() if role.moves} or roles
    roots = [name for name, role in moving.items() if role.teacher not in moving] or list(moving)
    first = found[roots[0]]
    resting = [name for name in roles if name not in moving]
    for name in resting:  # it reads its students' rows
        own = {kind: spec for kind, spec in found[name].items() if kind in first}
        if {kind: spec.numbers() for kind, spec in own.items()} != {
            kind: first[kind].numbers() for kind in own
        }:
            raise ConfigError(
                f"{prefix}{name}.objective",
                f"differs in the rows that it shares with {roots[0]}",
                "give the same values, or leave it out",
            )
    for name in roots[1:]:
        if {kind: spec.numbers() for kind, spec in found[name].items()} != {
            kind: spec.numbers() for kind, spec in first.items()
        }:
            raise ConfigError(
                f"{prefix}{name}.objective",
                f"reads {', '.join(found[name])}, but {roots[0]} {', '.join(first)} or other rows",
                "roles of one training share their samples: give both the same, or train them separately",
            )
    for name, own in found.items():
        for kind in own:
            if kind not in (first or {WINDOWS}):
                raise ConfigError(
                    f"{prefix}{name}.objective",
                    f"reads {kind}, but {roots[0]}, which defines the samples, reads {', '.join(first)}",
                    f"give {roots[0]} an objective of kind {kind}, or take it from {name}",
                )
    return first


def sources(roles: Mapping[str, Role]) -> set[str]:
    """The artifact kinds, besides tokens, from which these roles' rows are made."""
    return {type(spec).source for spec in row_specs(roles).values()} - {"tokens"}


def check_sources(roles: Mapping[str, Role], known: Iterable[str], prefix: str = "roles.") -> None:
    """Raise ConfigError if an objective names a text source that is not in `known`."""
    known = list(known)
    for name, role in roles.items():
        for key, spec in role.objective.items():
            for source in getattr(spec, "sources", ()):
                if source not in known:
                    near = nearest(source, known)
                    raise ConfigError(
                        f"{prefix}{name}.objective.{key}.sources" if prefix else f"objective.{key}.sources",
                        f"there is no source {source!r}",
                        f"did you mean {near}?" if near else f"there are: {', '.join(known)}",
                    )


def streams(
    specs: Mapping[str, ObjectiveSpec],
    weights: Mapping[str, float],
    later: Sequence[SourceShares] = (),
    epochs: Mapping[str, float] | None = None,
) -> tuple[Stream, ...]:
    """One stream for every source and kind of rows, weighted by the product of their shares. `weights`: of
    the sources; `later`: the phases after the first; `epochs`: passes by source at most, over each kind of
    its rows.
    """
    caps = epochs or {}
    read = read_in(weights, later)
    weights = {source: weight for source, weight in weights.items() if source in read}
    after = {source: [shares.weights[source] for shares in later] for source in weights}
    if set(specs) <= {WINDOWS}:
        return in_order(
            Stream(
                input=f"tokens.{source}",
                weight=weight,
                later=tuple(after[source]),
                epochs=caps.get(source, 0.0),
            )
            for source, weight in weights.items()
        )
    return in_order(
        Stream(
            input=f"{type(spec).source}.{source}",
            kind=kind,
            weight=weight * share_of(spec),
            later=tuple(each * share_of(spec) for each in after[source]),
            epochs=caps.get(source, 0.0),
            rows=None
            if kind == WINDOWS
            else spec.model_copy(update={"weight": 1.0, "schedule": WeightSchedule()}),
        )
        for kind, spec in specs.items()
        for source, weight in weights.items()
    )


def read_in(weights: Mapping[str, float], later: Iterable[SourceShares] = ()) -> set[str]:
    """The sources that are read in these phases."""
    every = (weights, *(shares.weights for shares in later))
    return {source for each in every for source, weight in each.items() if weight}


def identity_of(
    kinds: Iterable[str],
    weights: Mapping[str, float],
    later: Sequence[SourceShares] = (),
    sharing: Sharing = BLOCKS,
) -> dict[str, Json]:
    """The samples' identity besides objectives and parents: shares of the sources in all phases, their
    assignment and caps, and versions of the mixture and of the kinds of rows. Empty if a single stream of
    version 1 is read without a cap.
    """
    kinds, found = sorted(set(kinds)), dict[str, Json]()
    if len(read_in(weights)) > 1 or later:  # parents do not tell which sources are read first
        found["weights"] = _normed(weights)
    if later:
        found["phases"] = [[shares.begin, _normed(shares.weights)] for shares in later]
    if len(kinds) * len(read_in(weights, later)) > 1:
        found["mixture"] = {"version": MIXTURE}
    read = read_in(weights, later)
    found |= sharing.identity(read, len(kinds) * len(read))
    versions = {kind: ROWS[kind] for kind in kinds if ROWS.get(kind, 1) != 1}
    return found | ({"rows": versions} if versions else {})


def _normed(weights: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(weights.values())
    return {source: weight / total for source, weight in weights.items() if weight}


def share_of(spec: ObjectiveSpec) -> float:
    """The share of the samples for an objective."""
    return float(getattr(spec, "rows", 1.0))


def _own(role: Role) -> dict[str, ObjectiveSpec]:
    return kinds_of_rows(role.objective)


def kinds_of_rows(objectives: Mapping[str, ObjectiveSpec]) -> dict[str, ObjectiveSpec]:
    """The first objective that reads each kind of rows, sorted by kind; other objectives of that kind define
    equal rows.
    """
    own = {
        type(spec).reads: spec
        for _, spec in sorted(objectives.items(), reverse=True)
        if not type(spec).needs_teacher
    }
    return dict(sorted(own.items()))
