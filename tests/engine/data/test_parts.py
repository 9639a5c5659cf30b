"""Long documents: split by their parts, and kept as lines that later tasks read."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier.engine.config import document
from atelier.engine.config.data import Source
from atelier.engine.config.error import DataError
from atelier.engine.data import source_reader
from tests.engine.data.conftest import Workshop

WORDS = ["the", "a", "of", "to", "and", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are"]


def book(seed: int, words: int, *, ends: str = "\n") -> str:
    rng = random.Random(seed)
    text = "".join(
        rng.choice(WORDS) + (rng.choice((ends, ends, ends + ends)) if n % 11 == 10 else " ")
        for n in range(words)
    )
    return f"Book {seed}.{ends}{text}"


def curated(workshop: Workshop, texts: dict[str, str], held_out: float):
    folder = workshop.folder / f"texts-{workshop.count}"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    return workshop.curate(Source(source=str(folder)), held_out)


def share(corpus) -> float:
    return corpus.record.summary["held_out_bytes"] / corpus.record.summary["bytes"]


@pytest.mark.parametrize("ends", ["\n", "\r", " ", ""])
@pytest.mark.parametrize("sizes", [(40_000, 40_000, 40_000), (100_000, *[60] * 19), (60_000,)])
def test_few_long_documents_are_split_near_the_asked_share_and_no_letter_is_lost(workshop, sizes, ends):
    texts = {f"b{n:02}": book(n, words, ends=ends) for n, words in enumerate(sizes)}
    corpus = curated(workshop, texts, 0.1)
    lines = workshop.lines(corpus, "documents.jsonl")
    assert 0.05 < share(corpus) < 0.15  # by whole documents 0.33, 0.02 or 0.98, and refused
    found = {name: "" for name in texts}
    for line in lines:
        found[line["id"].partition(".")[0]] += line["text"]
    assert found == texts
    summary = corpus.record.summary
    assert summary["documents"] == len(lines)
    assert summary["bytes"] == sum(len(text.encode()) for text in texts.values())
    assert summary["in_parts"] == sum(words > 60 for words in sizes)
    ends_of = [line for line in lines if not line.get("cut")]
    assert len(ends_of) == len(texts)  # what goes on elsewhere has no end


def test_a_run_says_that_documents_are_split_and_which_share_is_held_out(workshop):
    curated(workshop, {f"b{n}": f"a short text {n}" * (1 + 9 * n) for n in range(3)}, 0.05)
    assert "% is held out where data.held_out asks for 5 %" in workshop.said
    curated(workshop, {"big": book(1, 30_000)}, 0.1)
    assert "1 document(s), longer than the whole held-out share, are split by their parts" in workshop.said
    assert "is held out where" not in workshop.said


def test_pages_that_two_long_documents_have_in_common_are_on_one_side(workshop):
    first = book(7, 60_000)
    pages = first.split("\n\n")
    second = "another foreword\n\n" + "\n\n".join([*pages[:300], "a new page", *pages[300:]])
    lines = workshop.lines(curated(workshop, {"one": first, "two": second}, 0.1), "documents.jsonl")
    sides: dict[str, set[str]] = {}
    for line in lines:
        for page in line["text"].split("\n\n")[1:-1]:
            sides.setdefault(page, set()).add(line["split"])
    mixed = sum(len(page) for page, found in sides.items() if len(found) > 1)
    assert mixed < 0.02 * len(first)  # cut at every so many characters it is 20 %


def test_parts_of_one_document_that_are_copies_are_on_one_side(workshop):
    corpus = curated(workshop, {"a": "the same words in a row.\n\n" * 8000, "b": book(3, 3000)}, 0.1)
    sides = {
        line["split"] for line in workshop.lines(corpus, "documents.jsonl") if line["id"].startswith("a")
    }
    assert len(sides) <= 2 and len({line["group"] for line in workshop.lines(corpus, "documents.jsonl")}) > 1


def test_files_of_the_standard_library_stay_whole(workshop):
    corpus = workshop.curate(Source(source="stdlib:json"), held_out=0.05)
    assert corpus.record.summary["in_parts"] == 0
    assert not any(line.get("cut") for line in workshop.lines(corpus, "documents.jsonl"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=60), st.integers(16, 300))
def test_parts_are_the_text_again_and_none_is_long(lines: list[str], size: int):
    from atelier.engine.data.curate import parts

    text = "\n".join(lines)
    found = parts(text, size)
    assert "".join(found) == text
    assert all(0 < len(part) <= 2 * size for part in found[:-1]) and all(map(len, found))
    assert not found or len(found[-1]) <= 2 * size + size // 2


def test_a_document_longer_than_a_stored_object_may_be_is_read_by_every_later_task(workshop, monkeypatch):
    from atelier.engine.data import curate

    monkeypatch.setattr(document, "MOST_BYTES", 64 << 10)  # a thousandth of what they are
    monkeypatch.setattr(curate, "LONGEST", 8 << 10)
    texts = {
        "long": book(1, 40_000),
        "nul": "\0" * 100_000 + "x",
        **{f"s{n}": book(n, 90) for n in range(30)},
    }
    corpus = curated(workshop, texts, 0.25)
    tokens = workshop.tokens(corpus, workshop.tokenizer(corpus))
    summary = tokens.record.summary
    assert summary["train_bytes"] + summary["held_out_bytes"] == sum(len(t.encode()) for t in texts.values())
    ends = sum(summary[f"{split}_documents"] for split in ("train", "held_out"))
    assert ends == corpus.record.summary["documents"] > 32


def test_a_line_of_a_corpus_is_never_longer_than_a_stored_object_may_be():
    from atelier.engine.data.curate import LONGEST

    line = {"group": "g" * 64, "id": "n" * 4096, "split": "held_out", "cut": True, "text": ""}
    for letter in ("\0", '"', "\U0001f600", "\x7f", "\u2028"):
        longest = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
        assert LONGEST * longest + len(json.dumps(line)) < document.MOST_BYTES


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz"])
def test_a_text_above_the_limit_is_refused_by_the_first_task(
    workshop: Workshop, tmp_path: Path, monkeypatch, name
):
    import gzip

    monkeypatch.setattr(source_reader, "MOST_TEXT", 1 << 20)
    text = "words in a row\n" * 80_000
    data = text.encode() if ".txt" in name else json.dumps({"text": text}).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(DataError, match=rf"{name}.*more than 1 MiB in one text; cut it into several"):
        workshop.curate(Source(source=str(tmp_path / name)))
