"""Interface of conversions, which make a finished model of another shape without training. Kind
`merge_experts` of group `conversion` is engine/config/conversion/merge_experts.py. Torch-free.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, SerializeAsAny

from atelier.engine.config.base import Json, Kind
from atelier.engine.config.registry import KindChooser, ModelSpec

# file of a converted model: weight -> its pieces, each [source, share, how] and the parent if not the first
ANCESTRY = "ancestry.json"
# files of a converted model: <weight>.<state> of the parent's optimiser; the optimiser's identity
OPTIMIZER, OPTIMIZER_KIND = "optimizer.safetensors", "optimizer.json"
FIRST = "model"  # role of the parent that is converted
COPIED = "copied"  # `how` of numbers copied unchanged from a parent


class Other(NamedTuple):
    """A further parent: kind of its artifact, its name, and the configuration key that names it."""

    kind: str
    name: str
    place: str


class ConversionSpec(Kind, ABC):
    """A conversion, and the model spec that it produces."""

    kind: str

    @property
    def num_tokens(self) -> int:
        """Training tokens that the conversion reads; 0 = none."""
        return 0

    @property
    def needs_tokenizer(self) -> bool:
        """Whether the tokenizer is replaced."""
        return False

    @property
    def others(self) -> Mapping[str, Other]:
        """The further parents, by role."""
        return {}

    def check_other(self, spec: ModelSpec, other: ModelSpec, which: Other) -> None:
        """Raise ConfigError if a further parent does not fit the first."""

    @abstractmethod
    def converted(self, spec: ModelSpec) -> ModelSpec:
        """The spec of the converted model. Raises ConfigError if `spec` cannot be converted."""


class GrowingSpec(ConversionSpec, ABC):
    """A conversion that copies weights, whole or in part, and adds new ones. It can convert optimiser states
    too.
    """

    optimizer: Literal["dropped", "grown"] = Field(
        default="dropped",
        description="the parent's last optimiser states: dropped; grown = converted like the weights, for"
        " further training (new weights have none)",
    )

    def of_states(self, state: str) -> Self:
        """The conversion for an optimiser state (`exp_avg` ...); new entries are zero."""
        return self


def keeps_states(optim: Mapping[str, Json]) -> dict[str, Json]:
    """The part of an optimiser's identity that determines its states."""
    return {name: optim[name] for name in ("kind", "beta1", "beta2", "momentum") if name in optim}


Conversion = Annotated[SerializeAsAny[ConversionSpec], BeforeValidator(KindChooser("conversion"))]
