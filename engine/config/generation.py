"""Settings of text generation: length, seed, sampling, and attributes (controllable generation, ERNIE 3.0
Titan, 2112.12731, section 3.2). Torch-free.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import parse_json
from atelier.engine.config.error import ConfigError, DamageError
from atelier.engine.config.parallel import InferenceLayout

Sentiment = Literal["positive", "negative", "neutral"]
GENRES = ("code", "test", "documentation", "line", "prose")  # of rules; each with its own soft prompts
TAGS = (
    "<|topic|>",
    "<|keywords|>",
    "<|sentiment|>",
    "<|length|>",
)  # special tokens, one before each attribute
ROUND = 8  # requested lengths are multiples of this many tokens


class GenerationAttributes(Spec):
    genre: str = Field(
        default="", description="a genre of the model: code, test, documentation, line or prose"
    )
    topic: str = Field(default="", description="topic of the text")
    keywords: tuple[str, ...] = Field(default=(), description="words that should occur in the text")
    sentiment: Literal["", "positive", "negative", "neutral"] = Field(
        default="", description="positive, negative or neutral"
    )
    length: int = Field(default=0, ge=0, description="approximate number of tokens; 0 = no wish")

    @property
    def is_empty(self) -> bool:
        return self == GenerationAttributes()


class Sampling(Spec):
    max_tokens: int = Field(default=128, ge=1, le=1_000_000, description="maximum of tokens; 1 to 1000000")
    temperature: float = Field(
        default=0.8, ge=0, le=100, description="divides the logits; 0 = the most probable token"
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="sample from the fewest tokens that reach this probability; above 0, at most 1",
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="sampling seed; the same seed gives the same text"
    )
    wishes: GenerationAttributes = Field(
        default=GenerationAttributes(), description="wished attributes of the text"
    )
    best_of: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="draw this many continuations and take the one that the model's own head rates highest"
        " natural; 1 to 1000",
    )


class Imitate(InferenceLayout):
    """Natural paragraphs, and a model's continuations of their beginnings (ERNIE 3.0 Titan, 2112.12731,
    section 3).
    """

    paragraphs: int = Field(default=2000, ge=10, description="paragraphs over both splits; 10 or more")
    tokens: int = Field(default=128, ge=16, description="tokens of the longest paragraph; 16 or more")
    sentences: int = Field(default=3, ge=1, description="a beginning has 1 to this many sentences")
    temperatures: tuple[Annotated[float, Field(gt=0, le=100)], ...] = Field(
        default=(0.5,),
        min_length=1,
        description="each paragraph is continued at one of these, above 0. Give only the one used later"
        " for candidates: a head trained at several temperatures ranks none well",
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus probability; above 0, at most 1")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of paragraph choice and sampling")


class Request(Sampling):
    """One request to a model server."""

    prompt: str = Field(default="", description="the text to continue; empty = the beginning of a document")


LIST = re.compile(r"\s*\[\s*\{")
MESSAGES = 'a text, or [{"role": "user", "content": "..."}], where "..." is any text'


def messages_of(chat: str) -> Json:
    """The messages if `chat` is a JSON list of messages; None if it is plain user text. Raises ConfigError if
    it starts like a list but is not valid.
    """
    try:
        return parse_json(chat, "chat") if LIST.match(chat) else None
    except DamageError as damage:
        raise ConfigError("chat", f"starts like a list of messages: {damage}", MESSAGES) from None


class Generation(Sampling):
    """Config of `python -m atelier.engine.generate`: continue `prompts`, answer `chats` or serve."""

    prompts: tuple[str, ...] = Field(default=(), description="texts to continue, each with the same seed")
    chats: tuple[str, ...] = Field(
        default=(),
        description="conversations to answer with the model's chat template: each a user's message or a"
        " JSON list of messages",
    )
    memory_gb: float = Field(
        default=0.0,
        ge=0,
        description="limit of weights in memory, GB; 0 = no limit. The text does not change",
    )
    serve: bool = Field(default=False, description="answer one JSON request per line until the input ends")
    cache_gb: float = Field(
        default=2.0, gt=0, description="memory for keys and values of all rows served together, GB"
    )


ROWS = 64  # documents continued at once


class Written(InferenceLayout):
    """Training text written by a finished model: beginnings of documents stay, the model continues them
    (sequence-level distillation, 1606.07947). Its tokenizer may differ from the reader's.
    """

    by: str = Field(default="", description="finished model that writes the training text; empty = none")
    documents: int = Field(
        default=2000, ge=0, description="documents to continue; 0 = all that are long enough"
    )
    prefix: int = Field(default=32, ge=1, description="tokens kept at the start of each document")
    tokens: int = Field(default=256, ge=1, description="maximum of written tokens")
    temperature: float = Field(
        default=1.0, ge=0, le=100, description="divides the logits; 0 = the most probable"
    )
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus probability; above 0, at most 1")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of document choice and sampling")

    @model_validator(mode="after")
    def _by_somebody(self) -> "Written":
        fields = type(self).model_fields
        given = [name for name in fields if getattr(self, name) != fields[name].default]
        if given and not self.by:
            raise ValueError(f"{given[0]} does nothing without by; give by=<model>")
        return self
