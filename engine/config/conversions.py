"""The interface of conversions: a finished model made into one of another shape, without training. `kind:
merge_experts` of group `conversion` is engine/config/conversion/merge_experts.py. Torch-free.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, SerializeAsAny

from atelier.engine.config.base import Kind
from atelier.engine.config.registry import KindChooser, ModelSpec

# file of a converted model: weight -> its pieces, [source, share, how] each, and the parent where it is
# another than the first
ANCESTRY = "ancestry.json"
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


Conversion = Annotated[SerializeAsAny[ConversionSpec], BeforeValidator(KindChooser("conversion"))]
