"""What every model, objective and optimiser spec offers, whatever its kind. Torch-free."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from atelier.engine.spec.base import Kind
from atelier.engine.spec.schedule import Schedule

Compared = Literal["logits", "hidden", "attention", "classes"]


class Limit(NamedTuple):
    """A number of a model that a mesh axis has to divide; for the axis `stage`, not exceed."""

    axis: str
    field: str
    number: int


class ModelSpec(Kind, ABC):
    """A network: its fields, and what can be known of it without building it."""

    kind: str
    num_layers: int
    hidden: int
    vocab: int | Literal["auto"]

    @property
    @abstractmethod
    def tokens(self) -> int:
        """V, the size of the vocabulary; an error while it is still 'auto'."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight by its name in the plain module, with its shape."""

    @abstractmethod
    def num_params(self) -> int:
        """How many numbers the weights hold."""

    @abstractmethod
    def flops_per_token(self, sequence: int) -> float:
        """Forward and backward FLOPs of one token of a sequence of `sequence` tokens."""

    def limits(self) -> list[Limit]:
        """What mesh axes have to divide. The axis `expert` is for models that have experts; of others it
        deals out samples. A model that offers no split and no parts allows no other.
        """
        return [Limit(axis, "kind", 1) for axis in ("tensor", "context", "stage")]

    def block_flops(self, sequence: int) -> list[float]:
        """Forward and backward FLOPs of one token in each block, and at last in all that follows them."""
        return [self.flops_per_token(sequence) / self.num_layers] * self.num_layers + [0.0]

    @abstractmethod
    def resolved(self, vocab: int) -> Self:
        """The same model with its vocabulary filled in from the tokenizer."""


class ObjectiveSpec(Kind):
    """Something that is optimised. Its shares follow from the weights of the objectives that are active."""

    needs_teacher: ClassVar[bool] = False
    compares: ClassVar[Compared] = "logits"  # what of the model it is computed from
    source: ClassVar[str] = "tokens"  # what its rows are made of: tokens, triples or imitations
    reads: ClassVar[str] = "windows"  # or a kind of engine/data/rows: what its samples are

    kind: str
    weight: float = Field(default=1.0, gt=0)

    @property
    def num_classes(self) -> int:
        """Classes of a row, for those that compare classes."""
        return 0

    def numbers(self) -> dict[str, Any]:
        """All but the weight: what its rows are made by."""
        return self.model_dump(mode="json", exclude={"weight"})


class OptimSpec(Kind):
    """An optimiser with its schedule."""

    kind: str
    lr: float
    clip: float
    schedule: Schedule
