"""Refuse documents that are not in one of some languages, by py3langid (optional, without a network)."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


class Language(FilterSpec):
    kind: Literal["language"] = "language"
    languages: tuple[str, ...] = Field(
        default=("en",), min_length=1, description="ISO 639 codes that are kept: en, de, zh ..."
    )
    min_probability: float = Field(
        default=0.65, ge=0, le=1, description="of the most probable language, which has to be one of them;"
        " 0 = off; 0.65 as in FineWeb",
    )  # fmt: skip
    max_read_chars: int = Field(
        default=10_000, ge=100, description="characters that are read from the beginning of a document"
    )
