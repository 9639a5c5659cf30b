"""The interface of conversions: a finished model made into one of another shape, without training. `kind:
merge_experts` of group `conversion` is engine/config/conversion/merge_experts.py. Torch-free.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Json, Kind
from atelier.engine.config.registry import KindChooser, ModelSpec

# file of a converted model: weight -> its pieces, [source, share, how] each, and the parent where it is
# another than the first
ANCESTRY = "ancestry.json"
# files of a converted model: <weight>.<state> of its parent's optimiser, and which optimiser that was
OPTIMIZER, OPTIMIZER_KIND = "optimizer.safetensors", "optimizer.json"
FIRST = "model"  # the role of the parent that a rule is of
COPIED = "copied"  # how, of numbers that are the parent's as they are


class Other(NamedTuple):
    """A further parent of a rule: the kind of its artifact, its name, and the key that names it."""

    kind: str
    name: str
    place: str


class ConversionSpec(Kind, ABC):
    """A rule, and what it makes of a model's spec."""

    kind: str

    @property
    def num_tokens(self) -> int:
        """Training tokens that the model reads for it; 0 = none."""
        return 0

    @property
    def needs_tokenizer(self) -> bool:
        """Whether it is to another tokenizer."""
        return False

    @property
    def others(self) -> Mapping[str, Other]:
        """The further parents that it is made from, by role."""
        return {}

    def check_other(self, spec: ModelSpec, other: ModelSpec, which: Other) -> None:
        """Raise ConfigError when a further model does not go with the first."""

    @abstractmethod
    def converted(self, spec: ModelSpec) -> ModelSpec:
        """The spec that it makes of `spec`. Raises ConfigError for one that it is not for."""


class GrowingSpec(ConversionSpec, ABC):
    """A rule that copies weights, whole or in part, and adds new ones: states of the parent's optimiser can
    be grown by it, too.
    """

    optimizer: Literal["dropped", "grown"] = Field(
        default="dropped",
        description="the parent's last optimiser states: dropped, or grown as the weights are, for a training"
        " that goes on; new weights have none",
    )

    def of_states(self, state: str) -> Self:
        """The rule for a state of the optimiser (`exp_avg` ...); what is new has zeros."""
        return self


def keeps_states(optim: Mapping[str, Json]) -> dict[str, Json]:
    """The part of an optimiser's identity that its states depend on."""
    return {name: optim[name] for name in ("kind", "beta1", "beta2", "momentum") if name in optim}


Conversion = Annotated[SerializeAsAny[ConversionSpec], BeforeValidator(KindChooser("conversion"))]
