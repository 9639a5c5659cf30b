"""Refuse documents that are too short or too long."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


class Length(FilterSpec):
    kind: Literal["length"] = "length"
    min_chars: int = Field(
        default=512, ge=0, description="characters; 0 = off; 512 as in Megatron-LM's cleanup of web pages"
    )
    max_chars: int = Field(
        default=0, ge=0, description="characters; 0 = off; bounds the time and memory of later filters"
    )
    min_words: int = Field(default=0, ge=0, description="words, punctuation included; 0 = off")
    max_words: int = Field(default=0, ge=0, description="words, punctuation included; 0 = off")
