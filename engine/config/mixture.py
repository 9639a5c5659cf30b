"""The samples of a training: rows of the kinds that its objectives read, in the shares they ask for, from
ordered input streams. Torch-free.
"""

import math
from collections.abc import Iterable, Mapping

from pydantic import Field

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.registry import Objective, ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule


class Stream(Spec):
    """One input of a blend: windows of packed documents, labelled examples (loss on the completion only), or
    the rows of an objective (a kind of engine/data/datasets).
    """

    input: str = Field(description="key in `inputs`")
    weight: float = Field(default=1.0, gt=0)
    kind: str = "windows"
    rows: Objective | None = Field(default=None, description="the objective whose fields define the rows")
    num_examples: int = Field(default=0, description="examples: how many are drawn; 0 = all")
    draw: int = Field(default=0, description="examples: which draw")

    @property
    def source(self) -> str:
        """The source of text that its rows are from."""
        return self.input.partition(".")[2]


def in_order(streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """Streams sorted by kind of rows and input: what is drawn from a stream depends on its index."""
    return tuple(sorted(streams, key=lambda stream: (stream.kind, stream.input, stream.draw)))


WINDOWS, EXAMPLES, CHAT = "windows", "examples", "chat"
MIXTURE = 2  # version of how samples are drawn from several streams; with one there is nothing to draw
# kind of rows -> version of its rows, if not 1
ROWS: dict[str, int] = {EXAMPLES: 2}  # without end tokens where none is needed


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


def streams(specs: Mapping[str, ObjectiveSpec], weights: Mapping[str, float]) -> tuple[Stream, ...]:
    """Every source in every kind of rows, weighted by the product of their shares. `weights`: of the
    sources.
    """
    if set(specs) <= {WINDOWS}:
        return in_order(Stream(input=f"tokens.{source}", weight=weight) for source, weight in weights.items())
    return in_order(
        Stream(
            input=f"{type(spec).source}.{source}",
            kind=kind,
            weight=weight * share_of(spec),
            rows=None
            if kind == WINDOWS
            else spec.model_copy(update={"weight": 1.0, "schedule": WeightSchedule()}),
        )
        for kind, spec in specs.items()
        for source, weight in weights.items()
    )


def identity_of(kinds: Iterable[str], weights: Mapping[str, float]) -> dict[str, Json]:
    """The part of the samples' identity that is not in the objectives and parents: the shares of the sources,
    and the versions of the mixture and of the kinds of rows. Empty when one stream of the first version is
    read.
    """
    kinds, found = sorted(set(kinds)), dict[str, Json]()
    if len(weights) > 1:
        total = math.fsum(weights.values())
        found["weights"] = {source: weight / total for source, weight in weights.items()}
    if len(kinds) * len(weights) > 1:
        found["mixture"] = {"version": MIXTURE}
    versions = {kind: ROWS[kind] for kind in kinds if ROWS.get(kind, 1) != 1}
    return found | ({"rows": versions} if versions else {})


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
