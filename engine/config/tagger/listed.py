"""Given triples, such as those of a knowledge graph, each with the first sentence that has both its names."""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.taggers import TaggerSpec


class ListedTriples(TaggerSpec):
    VERSION: ClassVar[int] = 2  # names in normal form C; a list of scripts without blanks

    kind: Literal["listed"] = "listed"
    source: str = Field(min_length=1, description="path or fsspec glob of .jsonl or .parquet files")
    head: str = Field(default="subject", min_length=1, description="field with the head of a triple")
    relation: str = Field(default="relation", min_length=1, description="field with its relation")
    tail: str = Field(default="object", min_length=1, description="field with its tail")

    @property
    def reads(self) -> tuple[str, str]:
        return self.source, self.head
