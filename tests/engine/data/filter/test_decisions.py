"""Decisions equal datatrove's, with its words and numbers of sentences (decisions.json, of
benchmarks/filters.py).
"""

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypedDict

import pytest

from atelier.engine.config.filter.c4 import C4
from atelier.engine.config.filter.fineweb import FineWeb
from atelier.engine.config.filter.gopher_quality import GopherQuality
from atelier.engine.config.filter.gopher_repetition import GopherRepetition
from atelier.engine.config.filters import FilterSpec
from atelier.engine.data.filter_text import EMPTY, DocumentText, check_of
from atelier.engine.data.splitter import OWN, Splitter

SPECS = [GopherQuality(), GopherRepetition(), C4(), FineWeb()]
NEVER = {  # limits that only huge texts exceed, and that are off by default
    "gopher_quality.max_words", "c4.min_paragraphs",
}  # fmt: skip


class Row(TypedDict):
    text: str
    words: str
    sentences: list[int]
    reasons: list[str]


@cache
def rows() -> list[Row]:
    return json.loads((Path(__file__).parent / "decisions.json").read_text())


def splitter_of(row: Row) -> Splitter:
    numbers: Iterator[int] = iter(row["sentences"])
    return Splitter(lambda text: row["words"].split(), lambda line: next(numbers))


def reasons(row: Row, specs: list[FilterSpec], splitter: Splitter) -> list[str]:
    text = DocumentText(row["text"], splitter=splitter)
    found = [check_of(spec)(text) for spec in specs]
    return [refused.reason if refused else "" for refused in found]


def test_every_decision_and_its_reason_is_datatroves_with_its_words() -> None:
    assert [reasons(row, [*SPECS], splitter_of(row)) for row in rows()] == [row["reasons"] for row in rows()]


def test_nearly_every_decision_is_datatroves_with_our_own_words() -> None:
    pairs = [pair for row in rows() for pair in zip(reasons(row, [*SPECS], OWN), row["reasons"], strict=True)]
    others = sum(bool(ours) != bool(theirs) for ours, theirs in pairs)
    assert others <= 0.06 * len(pairs)  # more than of all documents: the table has the rare ones


def test_the_table_has_every_reason_and_kept_texts_of_each_filter() -> None:
    counts = Counter(reason for row in rows() for reason in row["reasons"])
    limits = {
        f"{spec.kind}.{name}" for spec in SPECS for name in type(spec).model_fields
        if name.startswith(("min_", "max_"))
    }  # fmt: skip
    lines = {"c4.min_words_per_line", "c4.max_word_length"}  # of lines, not of documents
    rare = {reason for reason in limits - lines - NEVER if not counts[reason]}
    assert not rare
    assert counts[f"fineweb.{EMPTY}"] and counts[f"gopher_repetition.{EMPTY}"]
    assert all(any(not row["reasons"][n] for row in rows()) for n in range(len(SPECS)))


@pytest.mark.parametrize(
    "broken",
    [
        GopherQuality(min_words=60),
        GopherQuality(min_alphabetic_words=0.7),
        GopherRepetition(max_top_3gram=0.12),
        C4(citations=False, min_sentences=7),
        FineWeb(max_duplicate_line_chars=0.1),
    ],
)
def test_a_slightly_different_rule_is_caught_by_the_table(broken: FilterSpec) -> None:
    place = [spec.kind for spec in SPECS].index(broken.kind)
    found = [reasons(row, [broken], splitter_of(row))[0] for row in rows()]
    assert found != [row["reasons"][place] for row in rows()]
