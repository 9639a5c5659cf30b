"""FineWeb's own quality rules (2406.17557, section 3.6), as in datatrove.

A character of a script without spaces (Chinese, Japanese, Thai) counts as a word in max_newlines.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


class FineWeb(FilterSpec):
    kind: Literal["fineweb"] = "fineweb"
    min_punctuated_lines: float = Field(
        default=0.12, ge=0, le=1, description="share of lines that end a sentence, in any script; 0 = off"
    )
    max_short_lines: float = Field(
        default=0.67, ge=0, le=1, description="share of lines of at most short_line_chars; 0 = off"
    )
    short_line_chars: int = Field(default=30, ge=1, description="characters of a short line")
    max_duplicate_line_chars: float = Field(
        default=0.01, ge=0, le=1, description="share of characters in lines that repeat a line; 0 = off"
    )
    max_newlines: float = Field(default=0.3, ge=0, description="line ends per word; 0 = off")
