"""Units of knowledge masking that a text's spelling does not show: words of scripts without blanks, and the
names of entities. Torch-free.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec

OF_TRIPLES = "triples"


class MaskingUnits(Spec):
    """A token beyond these units belongs to a word or phrase by its spelling."""

    words: Literal["spelling", "characters", "jieba"] = Field(
        default="spelling",
        description="words of scripts without blanks. spelling: runs of up to 16 tokens; characters: each"
        " character; jieba: Chinese words (the extra chinese)",
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
