"""What a text should be: the attributes of controllable generation (ERNIE 3.0 Titan, 2112.12731, section
3.2). Torch-free.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.spec.base import Spec

Sentiment = Literal["positive", "negative", "neutral"]
GENRES = ("code", "test", "documentation", "line", "prose")  # each with soft prompts of its own
TAGS = (
    "<|topic|>",
    "<|keywords|>",
    "<|sentiment|>",
    "<|length|>",
)  # special tokens, one before each attribute
ROUND = 8  # a length is asked for in multiples of so many tokens


class Wishes(Spec):
    genre: Literal["", "code", "test", "documentation", "line", "prose"] = Field(
        default="", description="code, test, documentation, line or prose"
    )
    topic: str = Field(default="", description="what it is about")
    keywords: tuple[str, ...] = Field(default=(), description="words that should occur")
    sentiment: Literal["", "positive", "negative", "neutral"] = Field(
        default="", description="positive, negative or neutral"
    )
    length: int = Field(default=0, ge=0, description="tokens, about; 0 = not asked for")

    @property
    def is_empty(self) -> bool:
        return self == Wishes()
