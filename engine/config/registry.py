"""The interfaces of model, objective and optimiser specs; the registry of their kinds.

The folder is the registry: `kind: gpt` of group `model` is engine/config/model/gpt.py, and a name can only
select a file of that folder, or of the same folder of an extension. Torch-free.
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
from atelier.engine.config.kind_files import kind_class
from atelier.engine.config.schedule import Schedule, WeightSchedule

NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of an objective: it names metrics


class Limit(NamedTuple):
    """A number of a model that the size of a mesh axis must divide; for the axis `stage`, must not exceed."""

    axis: str
    field: str
    number: int


class ModelSpec(Kind, ABC):
    """A network's fields, and what can be computed from them without building it."""

    # tensors of a batch that it reads besides tokens, positions, documents and memory
    inputs: ClassVar[tuple[str, ...]] = ()
    refused_schedules: ClassVar[tuple[str, ...]] = ()  # of a pipeline, that its blocks do not fit

    kind: str
    num_layers: int
    hidden: int
    vocab: int | Literal["auto"]

    @property
    @abstractmethod
    def tokens(self) -> int:
        """V, the size of the vocabulary; an error while it is still 'auto'."""

    @property
    def ids(self) -> int:
        """Numbers of the vocabulary that stand for tokens of the tokenizer; the rest are padding."""
        return self.tokens

    @property
    def num_blocks(self) -> int:
        """All blocks, in order; more than num_layers where another net comes before."""
        return self.num_layers

    @property
    def reads_encoder(self) -> bool:
        """Whether rows have an input of their own for an encoder."""
        return set(ENCODER) <= set(type(self).inputs)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by its name in the plain module, with its shape."""

    @abstractmethod
    def num_params(self) -> int:
        """Number of parameters."""

    @abstractmethod
    def flops_per_token(self, sequence: int) -> float:
        """Forward and backward FLOPs of one token of a sequence of `sequence` tokens."""

    def limits(self) -> list[Limit]:
        """The numbers that mesh axes have to divide. The axis `expert` applies to models that have experts;
        for others it shards samples. A model that offers neither splits nor parts allows no other axis.
        """
        return [Limit(axis, "kind", 1) for axis in ("tensor", "context", "stage")]

    def block_flops(self, sequence: int) -> list[float]:
        """Forward and backward FLOPs of one token in each block; the last entry is everything after the
        blocks.
        """
        return [self.flops_per_token(sequence) / self.num_blocks] * self.num_blocks + [0.0]

    def lr_factors(self) -> dict[str, float]:
        """Factors of the learning rate by weight, of the weights that have one (muP)."""
        return {}

    def arguments(self) -> dict[str, Json]:
        """Plain JSON for a model's config.json, with the version of the kind where it is not 1."""
        return self.model_dump(mode="json") | ({} if self.version == 1 else {"version": self.version})

    @abstractmethod
    def resolved(self, vocab: int) -> Self:
        """The same model with its vocabulary filled in from the tokenizer."""


class ObjectiveSpec(Kind):
    """A loss to optimise. Its share follows from the weights of the active objectives."""

    needs_teacher: ClassVar[bool] = False
    reads_logits_only: ClassVar[bool] = False  # of its teacher, whose answers may come from another site
    term: ClassVar[str] = ""  # the file of engine/objective that computes it; "" = that of its kind
    source: ClassVar[str] = (
        "tokens"  # artifact kind of its rows: tokens, attributes, triples, imitations, chats
    )
    reads: ClassVar[str] = "windows"  # kind of its rows: windows, or a module of engine/data/datasets
    extras: ClassVar[tuple[str, ...]] = ()  # tensors that only its rows have, for the model to read
    # what its teacher gives: outputs for the same rows (answers), or another lesson, which changes the rows
    lesson: ClassVar[str] = "answers"
    predicts: ClassVar[bool] = True  # whether its role predicts tokens by it
    is_of_every_token: ClassVar[bool] = (
        False  # a mean over all tokens of its rows, not over those with labels
    )

    kind: str
    weight: float = Field(default=1.0, gt=0)
    schedule: WeightSchedule = Field(
        default=WeightSchedule(), description="how the weight moves over the role's steps"
    )

    def added(self, model: ModelSpec, teacher_hidden: int) -> dict[str, tuple[int, ...]]:
        """Weights that it adds to the student, by name; the finished model is without them."""
        return {}

    @property
    def steps_behind(self) -> int:
        """How many steps its role is behind its teacher."""
        return 0

    @property
    def encoder_length(self) -> int:
        """U, the tokens of its rows' other input; 0 = it has none."""
        return 0

    def row_tokens(self, sequence: int) -> int:
        """T, the tokens of its rows in a training of `sequence` tokens."""
        return sequence

    def sentinels(self, sequence: int) -> int:
        """Sentinels that its rows need of the tokenizer in a training of `sequence` tokens."""
        return 0

    @property
    def num_classes(self) -> int:
        """Number of classes, for objectives that compare classes."""
        return 0

    @property
    def least_sequence(self) -> int:
        """Tokens of the shortest rows that it can be computed on."""
        return 1

    def check(self, place: str, key: str, model: ModelSpec, teacher: tuple[str, ModelSpec] | None) -> None:
        """Raise ConfigError when the role's model, or its teacher's, does not offer what the objective needs.
        `key`: the objective's name; `place`: the role's, for messages, with a dot at its end, or '';
        `teacher`: its name and model, if they are known.
        """

    def check_reader(self, place: str, model: ModelSpec) -> None:
        """Raise ConfigError when a model cannot read the objective's rows: then no role of that training can
        have it, whatever it optimises. `place` as in `check`.
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
                    f"{model.kind} does not read {name}, which rows of the objective {self.kind} have",
                    f"kind={fits} does" if fits else "no kind here does",
                )

    def divided_by_tensor(self, teacher: tuple[str, ModelSpec]) -> dict[str, int]:
        """The numbers that a student's tensor axis has to divide, by their names in messages, which may name
        the objective as {key}.
        """
        return {}

    def numbers(self) -> dict[str, Json]:
        """All fields but the weight and its schedule: they define its rows."""
        return self.model_dump(mode="json", exclude={"weight", "schedule"})

    def trunk(self) -> dict[str, Json]:
        """Identity of the steps before the weight moves."""
        weight = self.weight if self.schedule.is_constant else self.weight * self.schedule.first
        return self.model_copy(update={"weight": weight, "schedule": WeightSchedule()}).as_identity()


class OptimSpec(Kind):
    """An optimiser with its schedule."""

    kind: str
    lr: float
    clip: float
    schedule: Schedule


FOLDER = Path(__file__).parent


@cache
def kinds(group: str) -> tuple[str, ...]:
    """The allowed values of `kind:` in a group, sorted."""
    own = (path.stem for path in (FOLDER / group).glob("[!_]*.py"))
    return tuple(sorted({*own, *kinds_of(f"config/{group}")}))


@cache
def spec_class(group: str, kind: str) -> type[Kind]:
    """The Spec class that engine/config/<group>/<kind>.py defines. Raises ValueError for an unknown kind."""
    if kind not in kinds(group):
        near = nearest(kind, kinds(group))
        hint = f"did you mean {near}? " if near else ""
        raise ValueError(f"no {group} of kind {kind!r}; {hint}there are: {', '.join(kinds(group))}")
    bases: dict[str, type[Kind]] = {"model": ModelSpec, "objective": ObjectiveSpec, "optim": OptimSpec}
    return kind_class(group, kind, bases.get(group, Kind))


def model_of(arguments: Mapping[str, Json], place: str) -> ModelSpec:
    """The model that these `ModelSpec.arguments` describe. Raises DataError for an unknown kind, ConfigError
    for wrong fields, and for a version of the kind that this code does not compute.
    """
    fields = dict(arguments)
    made = fields.pop("version", 1)
    try:
        kind = spec_class("model", str(fields.get("kind", "")))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    spec = cast(ModelSpec, parse(kind, fields, place))
    check_version(made, spec, place, "the model")
    return spec


def check_version(made: Json, spec: ModelSpec, place: str, what: str, commit: str = "") -> None:
    """Raise ConfigError unless `what`, a model made by version `made` of its kind, is what this code
    computes. `commit`: of the code that made it.
    """
    if made == spec.version:
        return
    where = f"commit {commit[:12]}" if commit else "its record names the commit"
    raise ConfigError(
        place,
        f"{what} is of version {made} of the kind {spec.kind}; this code computes version {spec.version}, "
        "in which its weights would be another network",
        f"use the code that made it ({where}), or train it again",
    )


@dataclass(frozen=True)
class KindChooser(SpecChooser):
    """Validates a document as the spec of the group's kind that it names, or of the `usual` one."""

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
    """Sorted: sums of floats depend on their order, and that of a configuration is not identity."""
    for name, spec in objectives.items():
        if not re.fullmatch(NAME, name):
            raise ValueError(f"{name!r} is no name of an objective: letters, digits, _ and -")
        if name in kinds("objective") and name != spec.kind:  # above all lm, which is what `loss` is of
            raise ValueError(f"{name} is of kind {spec.kind}; a kind's name is for an objective of it")
    return dict(sorted(objectives.items()))


Objectives = Annotated[dict[str, Objective], AfterValidator(_by_name)]
