"""Texts that differ in byte order marks, line ends and blanks are copies: kept once, never on both sides."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.config.data import Labels, Source
from tests.engine.data.conftest import Workshop


def told(text: str) -> str:
    """By what a test tells copies: written apart from the code that it tests."""
    return " ".join(text.replace("\ufeff", "").split())


def variants(text: str) -> dict[str, bytes]:
    crlf = text.replace("\n", "\r\n").encode()
    return {
        "lf": text.encode(), "crlf": crlf, "bom": b"\xef\xbb\xbf" + text.encode(),
        "end": (text + " \n").encode(), "tabs": text.replace(" ", "\t\u00a0").encode(),
    }  # fmt: skip


def folder_of(workshop: Workshop, count: int) -> Path:
    folder = workshop.folder / "texts"
    folder.mkdir()
    for n in range(count):
        text = f"document {n}\nhas two lines and some words {n * n}\n" * 3
        for name, data in variants(text).items():
            (folder / f"{n}-{name}.txt").write_bytes(data)
    (folder / "empty.txt").write_bytes(b"\xef\xbb\xbf")
    return folder


def test_texts_that_differ_in_line_ends_blanks_or_a_bom_are_kept_once(workshop: Workshop):
    corpus = workshop.curate(Source(source=str(folder_of(workshop, 20))), held_out=0.25)
    lines = workshop.lines(corpus, "documents.jsonl")
    sides: dict[str, set[str]] = {}
    for line in lines:
        sides.setdefault(told(line["text"]), set()).add(line["split"])
    assert {len(found) for found in sides.values()} == {1}
    assert len(lines) == len(sides) == 20
    assert corpus.record.summary["duplicates"] == 80


def test_a_byte_order_mark_is_no_text_and_no_document(workshop: Workshop):
    folder = folder_of(workshop, 3)
    for n in range(3):
        (folder / f"{n}-bom.txt").rename(folder / f"{n}-a.txt")  # the one that is kept
    corpus = workshop.curate(Source(source=str(folder)))
    lines = workshop.lines(corpus, "documents.jsonl")
    assert len(lines) == 3 and not any("\ufeff" in line["text"] for line in lines)
    assert "empty.txt" not in {line["id"] for line in lines}


def test_a_copy_in_another_source_is_on_the_same_side(workshop: Workshop):
    texts = [f"a text that stands in two sources, number {n}" for n in range(40)]
    splits = [
        {told(line["text"]): line["split"] for line in workshop.lines(corpus, "documents.jsonl")}
        for corpus in (
            workshop.corpus(texts),
            workshop.corpus([text.replace(" ", "  ") + "\r\n" for text in texts]),
        )
    ]
    assert splits[0] == splits[1]


def labels_of(workshop: Workshop, rows: list[dict[str, str]]) -> tuple[list[dict], list[dict]]:
    path = workshop.folder / f"labels-{workshop.count}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = workshop.labels(Labels(source=str(path), held_out=0.3))
    train, test = (workshop.lines(found, f"{name}.jsonl") for name in ("train", "test"))
    return train, test


def test_no_labelled_test_question_is_in_training_with_other_blanks(workshop: Workshop):
    rows = [
        {"text": f"question {n} of the set{end}", "label": f"{n % 2}"}
        for n in range(30)
        for end in ("", " ", "\r\n", " \n ")
    ]
    train, test = labels_of(workshop, [*rows, {"text": "\ufeffquestion 1 of the set", "label": "\ufeff1"}])
    assert len(test) > 3
    assert not {told(e["prompt"]) for e in test} & {told(e["prompt"]) for e in train}
    assert len(test) + len(train) == 30


def test_groups_with_a_text_in_common_are_on_one_side(workshop: Workshop):
    rows = [
        {"text": f"question {n} {part}", "label": f"{n % 2}{part}", "group": f"{n}-{part}"}
        for n in range(30)
        for part in ("first", "second")
    ]
    shared = [{"text": f"shared  {n}", "label": "1", "group": f"{n}-first"} for n in range(30)]
    shared += [{"text": f"shared {n}", "label": "0", "group": f"{n}-second"} for n in range(30)]
    train, test = labels_of(workshop, [{**row, "label": row["label"][0]} for row in rows] + shared)
    assert not {told(e["prompt"]) for e in test} & {told(e["prompt"]) for e in train}
    assert not {e["group"].split("-")[0] for e in test} & {e["group"].split("-")[0] for e in train}


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_normalising_twice_is_normalising_once_and_blanks_do_not_count(text: str):
    from atelier.engine.data.copies import normalised

    assert normalised(normalised(text)) == normalised(text)
    assert normalised(f"\ufeff\r\n {text.replace(' ', '   ')} \t") == normalised(text)


def test_letters_that_are_composed_otherwise_are_equal_and_exponents_are_not():
    from atelier.engine.data.copies import normalised

    assert normalised("cafe\u0301 noir") == normalised("caf\u00e9 noir")
    assert normalised("x²") != normalised("x2") and normalised("a b") != normalised("ab")


@pytest.mark.parametrize("text", ["a" + "\u0315\u0300" * 200_000, "ü b " * 400_000, "\ufeff" * 10**6])
def test_normalising_takes_time_as_the_text_is_long(text: str):
    from atelier.engine.data.copies import normalised

    begin = time.process_time()
    normalised(text)
    assert time.process_time() - begin < 2  # composing 400,000 accents at once takes minutes
