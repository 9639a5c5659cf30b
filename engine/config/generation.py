"""How text is sampled from a model: length, seed, and generation attributes (controllable generation, ERNIE
3.0 Titan, 2112.12731, section 3.2). Torch-free.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import parse_json
from atelier.engine.config.error import ConfigError, DamageError

Sentiment = Literal["positive", "negative", "neutral"]
GENRES = ("code", "test", "documentation", "line", "prose")  # each with soft prompts of its own
TAGS = (
    "<|topic|>",
    "<|keywords|>",
    "<|sentiment|>",
    "<|length|>",
)  # special tokens, one before each attribute
ROUND = 8  # a length is asked for in multiples of so many tokens


class GenerationAttributes(Spec):
    genre: Literal["", "code", "test", "documentation", "line", "prose"] = Field(
        default="", description="code, test, documentation, line or prose"
    )
    topic: str = Field(default="", description="what it is about")
    keywords: tuple[str, ...] = Field(default=(), description="words that should occur")
    sentiment: Literal["", "positive", "negative", "neutral"] = Field(
        default="", description="positive, negative or neutral"
    )
    length: int = Field(default=0, ge=0, description="approximate number of tokens; 0 = not asked for")

    @property
    def is_empty(self) -> bool:
        return self == GenerationAttributes()


class Sampling(Spec):
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="tokens drawn at most; 1 to 1000000")
    temperature: float = Field(
        default=0.8, ge=0, le=100, description="divides the logits; 0 = the most probable token"
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="keeps the fewest tokens that together reach this share; above 0, at most 1",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="of the draws; the same seed gives the same text"
    )
    wishes: GenerationAttributes = Field(
        default=GenerationAttributes(), description="what the text should be"
    )
    best_of: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="continuations that are drawn; the one that the model's own head finds most natural is "
        "taken; 1 to 1000",
    )


class Imitate(Spec):
    """Natural paragraphs, and a model's continuations of their beginnings (ERNIE 3.0 Titan, 2112.12731,
    section 3).
    """

    paragraphs: int = Field(default=2000, ge=10, description="how many, over both splits; 10 or more")
    tokens: int = Field(default=128, ge=16, description="tokens of the longest paragraph; 16 or more")
    sentences: int = Field(default=3, ge=1, description="a beginning is 1 to this many sentences")
    temperatures: tuple[Annotated[float, Field(gt=0, le=100)], ...] = Field(
        default=(0.5,),
        min_length=1,
        description="each paragraph is continued at one of these temperatures, above 0; give only the one at "
        "which candidates will be drawn: a head trained on several ranks the candidates of none"
        " of them",
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of the nucleus; above 0, at most 1")
    seed: int = Field(default=1, ge=0, lt=2**63, description="of the choice of paragraphs and of the draws")


class Request(Sampling):
    """One request to a serving model."""

    prompt: str = Field(default="", description="the text to continue; empty = the beginning of a document")


LIST = re.compile(r"\s*\[\s*\{")
MESSAGES = 'a text, or [{"role": "user", "content": "..."}], in which the text may be anything'


def messages_of(chat: str) -> Json:
    """The messages that a chat is the JSON list of; None for a user's message. Raises ConfigError for what
    begins as such a list and is none.
    """
    try:
        return parse_json(chat, "chat") if LIST.match(chat) else None
    except DamageError as damage:
        raise ConfigError("chat", f"begins as a list of messages: {damage}", MESSAGES) from None


class Generation(Sampling):
    """The config of `python -m atelier.engine.generate`: continue `prompts`, answer `chats` or requests."""

    prompts: tuple[str, ...] = Field(default=(), description="texts to continue, each from the same seed")
    chats: tuple[str, ...] = Field(
        default=(),
        description="conversations to answer instead, by the model's chat template: a user's message each, or"
        " a JSON list of messages",
    )
    memory_gb: float = Field(
        default=0.0,
        ge=0,
        description="weights in memory at once, GB; 0 = all of the model. The text is the same",
    )
    serve: bool = Field(default=False, description="answer a JSON request a line, until the input ends")
    cache_gb: float = Field(
        default=2.0, gt=0, description="keys and values of all rows that are served together, GB"
    )


ROWS = 64  # documents that are continued at once


class Written(Spec):
    """Text that a finished model writes: documents with their beginnings as they were, continued by it
    (sequence-level distillation, 1606.07947). Its tokenizer may be another than the reader's.
    """

    by: str = Field(
        default="", description="a finished model that writes the training text; empty = none does"
    )
    documents: int = Field(
        default=2000, ge=0, description="how many it continues; 0 = all that are long enough"
    )
    prefix: int = Field(default=32, ge=1, description="tokens of a document that are left as they were")
    tokens: int = Field(default=256, ge=1, description="tokens that are written at most")
    temperature: float = Field(
        default=1.0, ge=0, le=100, description="divides the logits; 0 = the most probable"
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="share of the nucleus; above 0, at most 1")
    seed: int = Field(default=1, ge=0, lt=2**63, description="of the choice of documents and of the draws")

    @model_validator(mode="after")
    def _by_somebody(self) -> "Written":
        fields = type(self).model_fields
        given = [name for name in fields if getattr(self, name) != fields[name].default]
        if given and not self.by:
            raise ValueError(f"{given[0]} does nothing where nobody writes; give by=<model>")
        return self
