"""Gopher's quality rules (2112.11446, appendix A.1.1), with punctuation as separate words, as datatrove does.

A character of a script without spaces (Chinese, Japanese, Thai) counts as a word: for such texts set
min_mean_word_length to 0, and give stop words of one character.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


class GopherQuality(FilterSpec):
    kind: Literal["gopher_quality"] = "gopher_quality"
    min_words: int = Field(default=50, ge=0, description="words that are not only punctuation; 0 = off")
    max_words: int = Field(default=100_000, ge=0, description="words that are not only punctuation; 0 = off")
    min_mean_word_length: float = Field(
        default=3, ge=0, description="characters per word, without words of punctuation; 0 = off"
    )
    max_mean_word_length: float = Field(
        default=10, ge=0, description="characters per word, without words of punctuation; 0 = off"
    )
    max_hashes: float = Field(default=0.1, ge=0, description="characters # per word; 0 = off")
    max_ellipses: float = Field(default=0.1, ge=0, description="ellipses (... or …) per word; 0 = off")
    max_bullet_lines: float = Field(
        default=0.9, ge=0, le=1, description="share of lines that begin with • or -; 0 = off"
    )
    max_ellipsis_lines: float = Field(
        default=0.3, ge=0, le=1, description="share of lines that end with an ellipsis; 0 = off"
    )
    min_alphabetic_words: float = Field(
        default=0.8, ge=0, le=1, description="share of words with a letter; 0 = off"
    )
    min_stop_words: int = Field(default=2, ge=0, description="different stop words; 0 = off")
    stop_words: tuple[str, ...] = Field(
        default=STOP_WORDS, description="words of which a text in the language has some; capitals matter"
    )
