"""Rows of a report."""

from pathlib import Path
from typing import cast

import pytest

from atelier.infra.report.collect import Scores, _baseline_rows, _head_rows, _tokens_read
from atelier.infra.report.render import ReportContent, tables_of
from tests.infra.records import family

KNOWN = cast(
    Scores,
    {
        "gzip": 2.5, "xz": 1.9, "trigram": 1.6, "trigram_tokens": 400_000,
        "trigram_by_tokens": {"65536": 2.2, "131072": 2.0, "262144": 1.8},
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("read", "bits"),
    [(131_072, 2.0), (185_364, 1.9), (400_000, None), (10**7, None), (1000, None), (None, None)],
)
def test_the_trigram_is_also_shown_with_as_many_tokens_as_the_teacher_read(
    read: int | None, bits: float | None
) -> None:
    found = {row["name"]: row.get("bits_per_byte") for row in _baseline_rows(KNOWN, read)}
    assert found["interpolated trigram"] == 1.6
    assert found.get("trigram, same tokens") == (pytest.approx(bits, abs=1e-4) if bits else None)


def test_baselines_of_an_earlier_version_have_the_whole_trigram_only() -> None:
    old = cast(Scores, {"trigram": 1.6, "trigram_tokens": 400_000})
    assert [row["name"] for row in _baseline_rows(old, 300_000)] == ["interpolated trigram"]


def test_a_model_has_read_what_the_model_that_it_began_from_had_read(tmp_path: Path) -> None:
    made = family(tmp_path)
    data = {key: made["teacher"].parents[key] for key in ("tokens.main", "tokenizer")}
    first = made.shelf.trajectory("later", data | {"init": made["teacher"].fingerprint}, end=100)
    last = made.shelf.trajectory("later", data | {"trunk": first.fingerprint}, start=100, end=200)
    later = made.shelf.model("later", last, data, step=200)
    assert _tokens_read(made.shelf.store, made["teacher"]) == 400 * 64
    assert _tokens_read(made.shelf.store, later) == 400 * 64 + 200 * 64


def test_a_head_stands_beside_what_is_right_without_a_network_and_by_guessing() -> None:
    rule = {"right": 0.6, "rows": 100, "by": "a trigram", "guess": 0.33}
    scores = cast(
        dict[str, Scores],
        {
            "teacher": {"heads": {"reorder": {"right": 0.5, "rows": 100}}},
            "baselines": {"heads": {"reorder": rule}},
        },
    )
    rows = _head_rows("teacher", scores)
    [table] = tables_of(ReportContent(title="", command="", rows=rows))
    assert table.head == ["name", "head", "right", "without a network", "by", "guessing"]
    assert table.rows == [["teacher", "reorder", "0.500 ± 0.098", "0.600", "a trigram", "0.330"]]
    assert _head_rows("student", scores) == []
