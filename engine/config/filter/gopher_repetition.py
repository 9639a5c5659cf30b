"""Gopher's repetition rules (2112.11446, table A1). Shares are of the text's characters unless said.

A character of a script without spaces (Chinese, Japanese, Thai) counts as a word: there the limits of top
n-grams are stricter than for English.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


def _top(size: int, share: float) -> float:
    about = f"share of characters in the most frequent {size}-gram of words; 0 = off"
    return Field(default=share, ge=0, le=1, description=about)


def _duplicate(size: int, share: float) -> float:
    about = f"share of characters in repeated {size}-grams of words; 0 = off"
    return Field(default=share, ge=0, le=1, description=about)


class GopherRepetition(FilterSpec):
    kind: Literal["gopher_repetition"] = "gopher_repetition"
    max_duplicate_paragraphs: float = Field(
        default=0.3, ge=0, le=1, description="share of paragraphs that repeat an earlier one; 0 = off"
    )
    max_duplicate_paragraph_chars: float = Field(
        default=0.2, ge=0, le=1, description="share of characters in such paragraphs; 0 = off"
    )
    max_duplicate_lines: float = Field(
        default=0.3, ge=0, le=1, description="share of lines that repeat an earlier one; 0 = off"
    )
    max_duplicate_line_chars: float = Field(
        default=0.2, ge=0, le=1, description="share of characters in such lines; 0 = off"
    )
    max_top_2gram: float = _top(2, 0.2)
    max_top_3gram: float = _top(3, 0.18)
    max_top_4gram: float = _top(4, 0.16)
    max_duplicate_5grams: float = _duplicate(5, 0.15)
    max_duplicate_6grams: float = _duplicate(6, 0.14)
    max_duplicate_7grams: float = _duplicate(7, 0.13)
    max_duplicate_8grams: float = _duplicate(8, 0.12)
    max_duplicate_9grams: float = _duplicate(9, 0.11)
    max_duplicate_10grams: float = _duplicate(10, 0.10)
