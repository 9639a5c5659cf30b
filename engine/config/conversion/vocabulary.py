"""Replace the tokenizer. Equal tokens keep their rows of embedding and head; a new token's rows are the mean
of the old tokens that spell it.
"""

from typing import Literal, Self

from pydantic import Field

from atelier.engine.config.base import Spec, parse
from atelier.engine.config.conversions import GrowingSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.text_blocks import TextBlocks


class ToVocabulary(GrowingSpec):
    kind: Literal["vocabulary"] = "vocabulary"
    rows: Literal["pieces", "mean", "zeros"] = Field(
        default="pieces",
        description="rows of a new token: pieces = mean of its old tokens; mean = of all; zeros",
    )
    against: float = Field(
        default=6.0,
        ge=0,
        description="nats by which new tokens' logits are lowered at the mean hidden state, to protect the"
        " old tokens",
    )
    lowered: Literal["mean", "evenly"] = Field(
        default="mean",
        description="what their rows are moved against for that. mean: the mean hidden state, though a state"
        " that points away from it then gets higher logits; evenly: a direction that lowers the logits of"
        " all hidden states by about the same",
    )
    tokens: int = Field(default=4096, ge=128, description="training tokens for the mean hidden state")

    tokenizer: str = Field(
        default="",
        description="finished model whose tokenizer is taken",
        json_schema_extra={"layout": True},  # a parent
    )

    @property
    def num_tokens(self) -> int:
        return self.tokens if self.against else 0

    @property
    def needs_tokenizer(self) -> bool:
        return True

    def of_states(self, state: str) -> Self:
        # rows share one step count: new rows without a second moment would make large first steps
        rows = "mean" if state == "exp_avg_sq" else "zeros"
        return self.model_copy(update={"rows": rows, "against": 0.0})

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, TextBlocks):
            problem = f"kind vocabulary needs a model of kind gpt or encdec, not {spec.kind}"
            raise ConfigError("convert", problem, "give another model")
        changed = {"vocab": "auto", "vocab_padding": 0}
        return parse(type(spec), spec.model_dump(mode="json") | changed, "convert")


class Growth(Spec):
    """Settings of the flow cpm2: from one language to two, then to a mixture of experts."""

    vocab: int = Field(default=6144, ge=300, description="vocabulary size of the tokenizer of both languages")
    mix: float = Field(
        default=3.0, gt=0, description="weight of the second language's text; the first's is 1"
    )
    steps: int = Field(default=200, ge=1, description="steps of the training on both languages")
    experts_steps: int = Field(default=200, ge=1, description="steps of the training as a mixture of experts")
    vocabulary: ToVocabulary = Field(default=ToVocabulary(), description="rows of the new tokens")
    scratch: bool = Field(
        default=True,
        description="also train the mixture from random weights, with the compute of all stages, to compare",
    )
