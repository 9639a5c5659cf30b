"""C4's rules for documents (1910.10683, section 2.2, and the code of its data set), and mC4's for paragraphs.

C4 also removes lines. A filter here never edits a document: it counts sentences in the lines that C4 would
keep, and leaves the document whole or refuses it.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.filters import FilterSpec


class C4(FilterSpec):
    kind: Literal["c4"] = "c4"
    min_sentences: int = Field(
        default=5, ge=0, description="sentences in the lines that C4 keeps, by the fields below; 0 = off"
    )
    lorem_ipsum: bool = Field(default=True, description="refuse documents with `lorem ipsum` in such a line")
    curly_brackets: bool = Field(default=True, description="refuse documents with { in such a line")
    min_words_per_line: int = Field(
        default=3, ge=0, description="words between blanks in a line that counts; 0 = off"
    )
    max_word_length: int = Field(
        default=1000, ge=0, description="characters of the longest word in a line that counts; 0 = off"
    )
    terminal_punctuation: bool = Field(
        default=True, description="""only lines count that end with one of . ? ! " ', but not with ..."""
    )
    javascript: bool = Field(default=True, description="lines with `javascript` do not count")
    policy: bool = Field(default=True, description="lines about cookies, privacy and terms do not count")
    citations: bool = Field(
        default=True, description="marks such as [1], [edit] are not part of a line when its end is looked at"
    )
    bad_words: tuple[str, ...] = Field(
        default=(), description="words or phrases, in small letters, that refuse a document; C4's own list is"
        " not included",
    )  # fmt: skip
    min_paragraphs: int = Field(
        default=0, ge=0, description="lines of at least paragraph_chars; 0 = off; mC4: 3"
    )
    paragraph_chars: int = Field(
        default=200, ge=1, description="characters of a line that counts as a paragraph"
    )
