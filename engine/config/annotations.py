"""Settings of attributes of paragraphs (genre, topic, keywords, sentiment) and of units of knowledge masking.
Torch-free.
"""

from importlib.metadata import version
from importlib.util import find_spec
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Json, Kind
from atelier.engine.config.error import ConfigError

WordKind = Literal["latin", "letters", "characters", "jieba"]
LABELS = ("genre", "topic", "keywords", "sentiment")  # fields of a row of labels, besides the document
OF_TRIPLES = "triples"


def dictionary(words: str, place: str) -> dict[str, Json]:
    """The version of jieba if it finds the words: a part of their identity. Raises ConfigError at `place`
    without the package.
    """
    if words != "jieba":
        return {}
    if find_spec("jieba") is None:
        raise ConfigError(place, "needs the package jieba", "pip install jieba (the extra chinese)")
    return {"jieba": version("jieba")}


class Described(Kind):
    """`genre` of a source is that of all its documents, as in 2112.12731, whose genres are its corpora."""

    source: str = Field(
        default="",
        description="path or fsspec glob of .jsonl or .parquet rows with labels of documents: genre, topic,"
        " keywords, sentiment, each optional; empty = none",
    )
    document: str = Field(
        default="document", min_length=1, description="field of a row with the id of its document"
    )
    genre: dict[str, str] = Field(
        default={}, description="genre by text source (main, or a name of data.blend); others by rules"
    )
    topics: int = Field(default=25, ge=1, description="topics that are kept; the rest is called other")
    keywords: int = Field(default=3, ge=0, description="keywords per paragraph; 0 = none")
    words: WordKind = Field(
        default="latin",
        description="words of keywords and sentiment. latin: A to Z, four or more; letters: of any alphabet;"
        " characters: also pairs of characters of scripts without blanks; jieba: Chinese words",
    )
    positive: tuple[str, ...] = Field(default=(), description="positive words; empty = English ones")
    negative: tuple[str, ...] = Field(default=(), description="negative words; empty = English ones")
    shortest: int = Field(default=60, ge=1, description="characters of the shortest paragraph")
    longest: int = Field(default=2000, ge=1, description="characters of the longest paragraph")
    paragraphs: int = Field(default=20_000, ge=1, description="maximum of paragraphs, chosen by hash")

    @property
    def version(self) -> int:
        """2: labels are of all parts of a document, an empty list of keywords is a label; scripts without
        blanks are listed, no longer all beyond Thai.
        """
        return 2 if self.source or self.words in ("characters", "jieba") else 1

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest={self.shortest} is above longest={self.longest}")
        return self


class MaskingUnits(Kind):
    """Words of scripts without blanks, and names of entities. Other tokens belong to a word or phrase by
    their spelling.
    """

    VERSION: ClassVar[int] = 2  # names in normal form C; a list of scripts without blanks

    words: Literal["spelling", "characters", "jieba"] = Field(
        default="spelling",
        description="words of scripts without blanks. spelling: not told apart, so that up to 16 tokens in a"
        " row are one word; characters: each character; jieba: Chinese words (the extra chinese)",
    )
    entities: str = Field(
        default="",
        description="names that are hidden as a whole: triples (heads and tails), or path or fsspec glob of"
        " .jsonl or .parquet rows; empty = none",
    )
    field: str = Field(default="name", min_length=1, description="field of a row with the name")

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        if self.field != "name" and self.entities in ("", OF_TRIPLES):
            raise ValueError(f"field={self.field} does nothing without files of entities")
        return self

    @property
    def is_plain(self) -> bool:
        """Whether there are no such units."""
        return self.words == "spelling" and not self.entities

    @property
    def reads(self) -> str:
        """The files of names; '' without."""
        return "" if self.entities == OF_TRIPLES else self.entities
