"""How a model grows in the flow cpm2: from one language to two, then to a mixture of experts. Torch-free."""

from pydantic import Field

from atelier.engine.config.base import Spec
from atelier.engine.config.conversion.vocabulary import ToVocabulary


class Growth(Spec):
    vocab: int = Field(default=6144, ge=300, description="ids of the tokenizer of both languages")
    mix: float = Field(
        default=3.0, gt=0, description="weight of the second language's text for each 1 of the first's"
    )
    steps: int = Field(default=200, ge=1, description="steps of the training on both languages")
    experts_steps: int = Field(default=200, ge=1, description="steps of the training as a mixture of experts")
    vocabulary: ToVocabulary = Field(default=ToVocabulary(), description="rows of the new tokens")
