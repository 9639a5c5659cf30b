"""How the attributes of paragraphs (genre, topic, keywords, sentiment) are found, or imported. Torch-free."""

from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec

WordKind = Literal["latin", "letters", "characters", "jieba"]
LABELS = ("genre", "topic", "keywords", "sentiment")  # fields of a row of labels, besides the document


class Described(Spec):
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

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest={self.shortest} is above longest={self.longest}")
        return self
