"""Interfaces of model, objective and optimiser specs, and the registry of their kinds.

The folder is the registry: `kind: gpt` of group `model` is engine/config/model/gpt.py or a file of that
folder in an extension or in another project root. A name can select nothing else. Torch-free.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Given, Json, Kind, Spec, SpecChooser, parse
from atelier.engine.config.batch import ENCODER
from atelier.engine.config.error import ConfigError, DataError, nearest
from atelier.engine.config.extensions import kinds_of
from atelier.engine.config.kind_files import kind_class, kinds_in_roots
from atelier.engine.config.own_code import code_digest, files_in
from atelier.engine.config.project_roots import ProjectRoot, project_roots
from atelier.engine.config.schedule import Schedule, WeightSchedule

NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of an objective; metrics are named by it


class Limit(NamedTuple):
    """A number of a model that a mesh axis must divide. The axis `stage` must not exceed it."""

    axis: str
    field: str
    number: int


class ModelSpec(Kind, ABC):
    """A network's fields, and its properties that need no built network."""

    # batch tensors that it reads besides tokens, positions, documents and memory
    inputs: ClassVar[tuple[str, ...]] = ()
    refused_schedules: ClassVar[tuple[str, ...]] = ()  # pipeline schedules that do not work with its blocks

    kind: str
    num_layers: int
    hidden: int
    vocab: int | Literal["auto"]

    @property
    @abstractmethod
    def tokens(self) -> int:
        """The vocabulary size V. Raises ConfigError while it is 'auto'."""

    @property
    def ids(self) -> int:
        """Vocabulary entries that are tokens of the tokenizer; the rest are padding."""
        return self.tokens

    @property
    def num_blocks(self) -> int:
        """All blocks, in order; more than num_layers if another net comes before."""
        return self.num_layers

    @property
    def reads_encoder(self) -> bool:
        """Whether rows have a separate input for an encoder."""
        return set(ENCODER) <= set(type(self).inputs)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every weight in the plain module."""

    @abstractmethod
    def num_params(self) -> int:
        """Number of parameters."""

    @abstractmethod
    def flops_per_token(self, sequence: int) -> float:
        """Forward and backward FLOPs of one token in a sequence of `sequence` tokens."""

    def limits(self) -> list[Limit]:
        """The numbers that mesh axes must divide. Without experts, the axis `expert` splits samples. By
        default a model allows no split over tensor, context or pipeline.
        """
        return [Limit(axis, "kind", 1) for axis in ("tensor", "context", "stage")]

    def block_flops(self, sequence: int) -> list[float]:
        """Forward and backward FLOPs of one token in each block; the last entry is everything after the
        blocks.
        """
        return [self.flops_per_token(sequence) / self.num_blocks] * self.num_blocks + [0.0]

    def lr_factors(self) -> dict[str, float]:
        """Learning-rate factors by weight, for weights that have one (muP)."""
        return {}

    def arguments(self) -> dict[str, Json]:
        """Plain JSON for a model's config.json, with the kind's version if it is not 1, and the digest of its
        code if that is of another project root.
        """
        own = code_digest(self.as_identity())
        version = {} if self.version == 1 else {"version": self.version}
        return self.model_dump(mode="json") | version | ({"code": own} if own else {})

    @abstractmethod
    def resolved(self, vocab: int) -> Self:
        """The same model with its vocabulary filled in from the tokenizer."""


class ObjectiveSpec(Kind):
    """A loss term. Its share is its weight relative to the other active objectives'."""

    needs_teacher: ClassVar[bool] = False
    reads_logits_only: ClassVar[bool] = False  # needs only logits; the teacher may be at another site
    term: ClassVar[str] = ""  # file of engine/objective that computes it; "" = its kind's
    source: ClassVar[str] = (
        "tokens"  # artifact kind of its rows: tokens, attributes, triples, imitations, chats
    )
    reads: ClassVar[str] = "windows"  # kind of its rows: windows or a module of engine/data/datasets
    extras: ClassVar[tuple[str, ...]] = ()  # tensors of its rows that the model reads
    # input from its teacher: outputs for the same rows (answers), or a lesson that changes the rows
    lesson: ClassVar[str] = "answers"
    hides_units: ClassVar[bool] = False  # its rows hide the units that data.units marks
    predicts: ClassVar[bool] = True  # whether it trains token prediction
    is_of_every_token: ClassVar[bool] = False  # mean over all tokens of its rows, not only labelled ones

    kind: str
    weight: float = Field(default=1.0, gt=0)
    schedule: WeightSchedule = Field(
        default=WeightSchedule(), description="schedule of the weight over the role's steps"
    )

    def added(self, model: ModelSpec, teacher_hidden: int) -> dict[str, tuple[int, ...]]:
        """Name -> shape of weights that it adds to the student; the finished model is without them."""
        return {}

    @property
    def steps_behind(self) -> int:
        """Number of steps that its role is behind its teacher."""
        return 0

    @property
    def encoder_length(self) -> int:
        """U, tokens of its rows' encoder input; 0 = none."""
        return 0

    def row_tokens(self, sequence: int) -> int:
        """T, tokens of its rows in a training of `sequence` tokens."""
        return sequence

    def sentinels(self, sequence: int) -> int:
        """Sentinels that its rows need in a training of `sequence` tokens."""
        return 0

    @property
    def num_classes(self) -> int:
        """Number of classes, for classification objectives."""
        return 0

    @property
    def least_sequence(self) -> int:
        """Tokens of the shortest rows that it works with."""
        return 1

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        """Raise ConfigError if the role's model or its teacher's lacks something that the objective needs.
        `key`: the objective's name. `place`: prefix of keys in messages, such as 'roles.student.', or ''.
        `teacher`: its name and model, if known.
        """

    def check_reader(self, place: str, model: ModelSpec) -> None:
        """Raise ConfigError if a model cannot read the objective's rows. Then no role of that training can
        have it. `place` as in `check`.
        """
        for name in self.extras:
            if name not in type(model).inputs:
                fits = ", ".join(
                    kind
                    for kind in kinds("model")
                    if name in getattr(spec_class("model", kind), "inputs", ())
                )
                raise ConfigError(
                    f"{place}model.kind",
                    f"{model.kind} does not read {name} of the objective {self.kind}'s rows",
                    f"kind={fits} does" if fits else "no kind here does",
                )

    def divided_by_tensor(self, teacher: tuple[str, ModelSpec]) -> dict[str, int]:
        """Numbers that a student's tensor axis must divide, by their names in messages, in which {key} stands
        for the objective.
        """
        return {}

    def numbers(self) -> dict[str, Json]:
        """All fields except the weight and its schedule: they define its rows."""
        return self.model_dump(mode="json", exclude={"weight", "schedule"})

    def trunk(self) -> dict[str, Json]:
        """Identity of the steps before the weight changes."""
        weight = self.weight if self.schedule.is_constant else self.weight * self.schedule.first
        return self.model_copy(update={"weight": weight, "schedule": WeightSchedule()}).as_identity()


class OptimSpec(Kind):
    """An optimiser with its schedule."""

    kind: str
    lr: float
    clip: float
    schedule: Schedule


FOLDER = Path(__file__).parent


def kinds(group: str) -> tuple[str, ...]:
    """The allowed values of `kind:` in a group, sorted."""
    return _kinds(group, project_roots())


@cache
def _kinds(group: str, roots: tuple[ProjectRoot, ...]) -> tuple[str, ...]:
    own = (path.stem for path in (FOLDER / group).glob("[!_]*.py"))
    return tuple(sorted({*own, *kinds_of(f"config/{group}"), *kinds_in_roots(f"config/{group}")}))


@cache
def spec_class(group: str, kind: str) -> type[Kind]:
    """The Spec class in engine/config/<group>/<kind>.py. Raises ValueError for an unknown kind."""
    if kind not in kinds(group):
        near = nearest(kind, kinds(group))
        hint = f"did you mean {near}? " if near else ""
        raise ValueError(f"no {group} of kind {kind!r}; {hint}there are: {', '.join(kinds(group))}")
    bases: dict[str, type[Kind]] = {"model": ModelSpec, "objective": ObjectiveSpec, "optim": OptimSpec}
    return kind_class(group, kind, bases.get(group, Kind))


def model_of(arguments: Mapping[str, Json], place: str) -> ModelSpec:
    """The model that `arguments` describe. Raises DataError for an unknown kind, ConfigError for wrong fields
    or a version of the kind that this code does not support.
    """
    fields = dict(arguments)
    made, code = fields.pop("version", 1), fields.pop("code", "")
    try:
        kind = spec_class("model", str(fields.get("kind", "")))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    spec = cast(ModelSpec, parse(kind, fields, place))
    check_version(made, spec, place, "the model")
    check_code(code, spec, place, "the model")
    return spec


def check_version(made: Json, spec: ModelSpec, place: str, what: str, commit: str = "") -> None:
    """Raise ConfigError unless this code computes version `made` of the model's kind. `what`: the model in
    the message. `commit`: of the code that made it.
    """
    if made == spec.version:
        return
    where = f"commit {commit[:12]}" if commit else "its record names the commit"
    raise ConfigError(
        place,
        f"{what} has version {made} of kind {spec.kind}; this code computes version {spec.version}, in"
        " which its weights mean another network",
        f"use the code that made it ({where}), or train again",
    )


def check_code(made: Json, spec: ModelSpec, place: str, what: str) -> None:
    """Raise ConfigError if a model of a kind of another root was made with other code of it (`made`: the
    digest), so that its weights may mean another network. `what`: the model in the message.
    """
    identity = spec.as_identity()
    if made != code_digest(identity):
        files = files_in(identity) or "none of them is here now"
        raise ConfigError(
            place,
            f"{what} was made with other code of kind {spec.kind}, in one of its files: {files}",
            "take that code back (its record names the commit of each project), or train again",
        )


@dataclass(frozen=True)
class KindChooser(SpecChooser):
    """Validates a document as the spec of the kind that it names, or of the `usual` kind."""

    group: str
    usual: str = ""

    def __call__(self, value: Spec | Json) -> Spec | Json:
        if not isinstance(value, dict):
            return value
        return spec_class(self.group, str(value.get("kind", self.usual))).model_validate(value)

    def spec_of(self, document: Mapping[str, Given]) -> type[Kind] | None:
        kind = str(document.get("kind", self.usual))
        return spec_class(self.group, kind) if kind in kinds(self.group) else None


Model = Annotated[SerializeAsAny[ModelSpec], BeforeValidator(KindChooser("model"))]
Objective = Annotated[SerializeAsAny[ObjectiveSpec], BeforeValidator(KindChooser("objective"))]
Optim = Annotated[SerializeAsAny[OptimSpec], BeforeValidator(KindChooser("optim"))]


def _by_name(objectives: dict[str, ObjectiveSpec]) -> dict[str, ObjectiveSpec]:
    """Sorted by name: the order of summed floats matters, and a configuration's order is not identity."""
    for name, spec in objectives.items():
        if not re.fullmatch(NAME, name):
            raise ValueError(f"{name!r} is not a name of an objective; use letters, digits, _ and -")
        if name in kinds("objective") and name != spec.kind:  # especially lm, which `loss` reports
            raise ValueError(f"{name} has kind {spec.kind}; only kind {name} may be called so")
    return dict(sorted(objectives.items()))


Objectives = Annotated[dict[str, Objective], AfterValidator(_by_name)]
