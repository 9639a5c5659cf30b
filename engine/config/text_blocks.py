"""Base of model kinds gpt and encdec: blocks that read and predict ids of one tokenizer. Torch-free.

E head width, V vocab
"""

from pydantic import Field

from atelier.engine.config.base import Count
from atelier.engine.config.blocks import Auto
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.soft_prompt import SoftPrompt


class TextBlocks(MixedBlocks):
    head_dim: Count | Auto = Field(default="auto", description="width E of a head; auto = hidden / num_heads")
    vocab_padding: int = Field(
        default=0, ge=0, description="extra rows of embedding and head beyond the vocabulary"
    )
    soft_prompt: SoftPrompt = Field(
        default=SoftPrompt(), description="vectors in place of tokens, learned with trainable.kind=prompt"
    )

    @property
    def has_even_heads(self) -> bool:
        return self.head_dim == "auto"

    @property
    def head_width(self) -> int:
        return super().head_width if self.head_dim == "auto" else self.head_dim

    @property
    def tokens(self) -> int:
        return super().tokens + self.vocab_padding

    @property
    def ids(self) -> int:
        return super().tokens
