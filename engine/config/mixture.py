"""The samples of a training: rows of the kinds that its objectives read, in the shares they ask for, from
ordered input streams. Torch-free.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from pydantic import Field

from atelier.engine.config.base import Json, Spec, Step
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.registry import Objective, ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule


class Phase(Spec):
    """Other shares of the sources from a step on: better text while the learning rate decays (MiniCPM,
    2404.06395, section 5).
    """

    begin: Step = Field(gt=0, description="the steps before it, or a share of all steps below 1")
    weights: dict[str, Annotated[float, Field(ge=0)]] = Field(
        min_length=1, description="of sources by name, the others keep those before; 0 = not read"
    )

    def first_step(self, num_steps: int) -> int:
        """Of a training of so many steps."""
        return round(self.begin * num_steps) if self.begin < 1 else int(self.begin)


class SourceShares(Spec):
    """The weights of every source from step `begin` on."""

    begin: int
    weights: dict[str, float]


def resolve_phases(
    weights: Mapping[str, float], phases: Mapping[str, Phase], num_steps: int, place: str = "data"
) -> tuple[SourceShares, ...]:
    """The phases after the first in their order, every one with all weights; those that change no share are
    left out. Raises ConfigError for one that
    begins outside the training or with another, or leaves no source.
    """
    found: list[tuple[int, str]] = []
    for name, phase in phases.items():
        begin = phase.first_step(num_steps)
        where = f"{place}.phases.{name}"
        if not 0 < begin < num_steps:
            raise ConfigError(
                f"{where}.begin",
                f"step {begin} is not within {num_steps} steps",
                f"a step from 1 to {num_steps - 1}, or a share below 1",
            )
        if same := [other for step, other in found if step == begin]:
            raise ConfigError(f"{where}.begin", f"step {begin}, as {same[0]}", "one phase begins at a step")
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


class Stream(Spec):
    """One input of a blend: windows of packed documents, labelled examples (loss on the completion only), or
    the rows of an objective (a kind of engine/data/datasets).
    """

    input: str = Field(description="key in `inputs`")
    weight: float = Field(default=1.0, ge=0)
    later: tuple[float, ...] = Field(default=(), description="its weight in each later phase")
    kind: str = "windows"
    rows: Objective | None = Field(default=None, description="the objective whose fields define the rows")
    num_examples: int = Field(default=0, description="examples: how many are drawn; 0 = all")
    draw: int = Field(default=0, description="examples: which draw")

    @property
    def source(self) -> str:
        """The source of text that its rows are from."""
        return self.input.partition(".")[2]

    @property
    def phase(self) -> int:
        """The number of the first phase that reads it."""
        every = (self.weight, *self.later)
        return next((n for n, weight in enumerate(every) if weight), len(every))


class MixturePart(NamedTuple):
    """A part of the mixture: a kind of rows, of one source of text or (None) of all."""

    kind: str
    source: str | None

    def has(self, stream: Stream) -> bool:
        return self.kind == stream.kind and self.source in (None, stream.source)


def parts_of(streams: Iterable[Stream], roles: Iterable[Role]) -> tuple[MixturePart, ...]:
    """The parts of the mixture between which objectives distinguish, in the order of their numbers: kinds of
    rows, and sources of text where an objective asks for some; empty when there is only one.
    """
    streams = list(streams)
    has_kinds = any(stream.rows for stream in streams)
    has_sources = any(getattr(spec, "sources", ()) for role in roles for spec in role.objective.values())
    found = dict.fromkeys(
        MixturePart(stream.kind, stream.source if has_sources else None) for stream in streams
    )
    return tuple(found) if has_kinds or has_sources else ()


def in_order(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """Streams sorted by their first phase, kind of rows and input: what is drawn from a stream depends on its
    index, and that not on later phases.
    """
    return tuple(sorted(streams, key=lambda each: (each.phase, each.kind, each.input, each.draw)))


WINDOWS, EXAMPLES, CHAT = "windows", "examples", "chat"
MIXTURE = 2  # version of how samples are drawn from several streams; with one there is nothing to draw
# kind of rows -> version of its rows, if not 1
# without end tokens where none is needed (2), encoded together with their prompt (3)
ROWS: dict[str, int] = {EXAMPLES: 3}


def row_specs(roles: Mapping[str, Role], prefix: str = "roles.") -> dict[str, ObjectiveSpec]:
    """The objective that defines the rows, by kind of rows; windows alone need none.

    A finished model defines none: its students do, which the fingerprints know. Raises ConfigError when roots
    define them differently, or a student, or a finished teacher, reads a kind that the root does not.
    """
    found = {name: _own(role) for name, role in roles.items()}
    moving = {name: role for name, role in roles.items() if role.moves} or roles
    roots = [name for name, role in moving.items() if role.teacher not in moving] or list(moving)
    first = found[roots[0]]
    resting = [name for name in roles if name not in moving]
    for name in resting:  # what it reads are its students' rows
        own = {kind: spec for kind, spec in found[name].items() if kind in first}
        if {kind: spec.numbers() for kind, spec in own.items()} != {
            kind: first[kind].numbers() for kind in own
        }:
            raise ConfigError(
                f"{prefix}{name}.objective",
                f"makes other rows than {roots[0]}, whose rows it reads",
                "the same numbers, or leave it out",
            )
    for name in roots[1:]:
        if {kind: spec.numbers() for kind, spec in found[name].items()} != {
            kind: spec.numbers() for kind, spec in first.items()
        }:
            raise ConfigError(
                f"{prefix}{name}.objective",
                f"reads {', '.join(found[name])}; {roots[0]} reads {', '.join(first)} or makes others",
                "roles of one training see the same samples: give both the same, or train them apart",
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
    """Artifact kinds from which the rows of these roles are made, besides tokens."""
    return {type(spec).source for spec in row_specs(roles).values()} - {"tokens"}


def check_sources(roles: Mapping[str, Role], known: Iterable[str], prefix: str = "roles.") -> None:
    """Raise ConfigError where an objective asks for rows of a source of text that is none of `known`."""
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
    specs: Mapping[str, ObjectiveSpec], weights: Mapping[str, float], later: Sequence[SourceShares] = ()
) -> tuple[Stream, ...]:
    """Every source in every kind of rows, weighted by the product of their shares. `weights`: of the
    sources; `later`: of the phases after the first.
    """
    read = read_in(weights, later)
    weights = {source: weight for source, weight in weights.items() if source in read}
    after = {source: [shares.weights[source] for shares in later] for source in weights}
    if set(specs) <= {WINDOWS}:
        return in_order(
            Stream(input=f"tokens.{source}", weight=weight, later=tuple(after[source]))
            for source, weight in weights.items()
        )
    return in_order(
        Stream(
            input=f"{type(spec).source}.{source}",
            kind=kind,
            weight=weight * share_of(spec),
            later=tuple(each * share_of(spec) for each in after[source]),
            rows=None
            if kind == WINDOWS
            else spec.model_copy(update={"weight": 1.0, "schedule": WeightSchedule()}),
        )
        for kind, spec in specs.items()
        for source, weight in weights.items()
    )


def read_in(weights: Mapping[str, float], later: Iterable[SourceShares] = ()) -> set[str]:
    """The sources that these phases read."""
    every = (weights, *(shares.weights for shares in later))
    return {source for each in every for source, weight in each.items() if weight}


def identity_of(
    kinds: Iterable[str], weights: Mapping[str, float], later: Sequence[SourceShares] = ()
) -> dict[str, Json]:
    """The part of the samples' identity that is not in the objectives and parents: the shares of the sources
    in the first and in `later` phases, and the versions of the mixture and of the kinds of rows. Empty when
    one stream of the first version is read.
    """
    kinds, found = sorted(set(kinds)), dict[str, Json]()
    if len(read_in(weights)) > 1 or later:  # which parents are read first is not known from them alone
        found["weights"] = _normed(weights)
    if later:
        found["phases"] = [[shares.begin, _normed(shares.weights)] for shares in later]
    if len(kinds) * len(read_in(weights, later)) > 1:
        found["mixture"] = {"version": MIXTURE}
    versions = {kind: ROWS[kind] for kind in kinds if ROWS.get(kind, 1) != 1}
    return found | ({"rows": versions} if versions else {})


def _normed(weights: Mapping[str, float]) -> dict[str, float]:
    total = math.fsum(weights.values())
    return {source: weight / total for source, weight in weights.items() if weight}


def share_of(spec: ObjectiveSpec) -> float:
    """The share of the samples that an objective asks for."""
    return float(getattr(spec, "rows", 1.0))


def _own(role: Role) -> dict[str, ObjectiveSpec]:
    """The first objective that reads each kind of rows, sorted by kind; a role's other objectives of that
    kind define the same rows.
    """
    own = {
        type(spec).reads: spec
        for _, spec in sorted(role.objective.items(), reverse=True)
        if not type(spec).needs_teacher
    }
    return dict(sorted(own.items()))
