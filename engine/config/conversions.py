"""The interface of conversions: a finished model made into one of another shape, without training. `kind:
merge_experts` of group `conversion` is engine/config/conversion/merge_experts.py. Torch-free.
"""

from abc import ABC, abstractmethod
from typing import Annotated

from pydantic import BeforeValidator, SerializeAsAny

from atelier.engine.config.base import Kind
from atelier.engine.config.registry import KindChooser, ModelSpec

ANCESTRY = "ancestry.json"  # file of a converted model: weight -> its pieces, [source, share, how] each
COPIED = "copied"  # how, of numbers that are the parent's as they are


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

    @abstractmethod
    def converted(self, spec: ModelSpec) -> ModelSpec:
        """The spec that it makes of `spec`. Raises ConfigError for one that it is not for."""


Conversion = Annotated[SerializeAsAny[ConversionSpec], BeforeValidator(KindChooser("conversion"))]
