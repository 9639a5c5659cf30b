"""Rows of two inputs: text restored from spans and sentinels, and from a beginning and what follows."""

import random
from pathlib import Path

import numpy as np
import pytest
import yaml

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.prefix import PrefixLM
from atelier.engine.config.objective.spans import Spans
from atelier.engine.data.datasets.spans import sentinels
from tests.engine.data.datasets.conftest import Harbour, whole

DOCUMENTS = 1500
WORDS = [
    "buoy",
    "pier",
    "estuary",
    "Grüße",
    "漁港の灯台",
    "🛟🛟",
    "\n\n",
    "  ",
    "int x;",
    "<|s0|>",
    "<|end|>",
    "naïve",
]


@pytest.fixture(scope="module")
def library(harbour: Harbour) -> Harbour:
    """Documents of 1 to 200 words, of any characters; what looks like a sentinel is text."""
    draw = random.Random(5)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 40))) + f" {n}" for n in range(DOCUMENTS)]
    for n in range(7, 12):  # on both sides of the split
        texts[n] = " ".join(draw.choices(WORDS, k=4000))
    corpus = harbour.shop.corpus(texts, 0.2)
    return Harbour(harbour.shop, corpus, harbour.tokens, harbour.vocabulary).with_sentinels(40)


def written(library: Harbour, split: str) -> list[bytes]:
    lines = library.shop.lines(library.corpus, "documents.jsonl")
    return [line["text"].encode() for line in lines if line["split"] == split]


def restored(read: list[int], said: list[int], marks: list[int]) -> list[int]:
    """The text of a row: each sentinel that was read replaced by what was said behind it."""
    spans: dict[int, list[int]] = {}
    for token in said:
        if token in marks:
            spans[token] = now = []
        else:
            now.append(token)
    found = [one for token in read for one in (spans.pop(token) if token in marks else [token])]
    assert not spans, "a sentinel was said that was not read"
    return found


def sides(batch: dict[str, np.ndarray], row: int) -> tuple[list[int], list[int]]:
    read = batch["encoder_tokens_BU"][row][batch["encoder_documents_BU"][row] >= 0].tolist()
    said = batch["labels_BT"][row][batch["labels_BT"][row] >= 0].tolist()
    return read, said


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_documents_are_restored_from_sentinels_byte_for_byte(library: Harbour, split: str) -> None:
    rows, vocabulary = library.open(Spans(encoder=96, mean=2.5), split=split), library.vocabulary
    marks, end = sentinels(vocabulary, 16), vocabulary.end_id
    batch = whole(rows, epoch=3)
    text, found = b"", []
    ends = np.cumsum(library.text(split).lengths_D - 1)
    done = 0
    for row in range(len(rows)):
        read, said = sides(batch, row)
        assert read[-1] == said[-1] == end and end not in read[:-1] + said[:-1]
        ids = restored(read[:-1], said[:-1], marks)
        done, text = done + len(ids), text + vocabulary.bytes_of(ids)
        if done in ends:
            found.append(text)
            text = b""
    print(f"{len(found)} documents restored")
    assert found == written(library, split)


def test_the_decoder_reads_what_it_has_said_behind_a_token_of_its_own(library: Harbour) -> None:
    for spec in (Spans(encoder=96), PrefixLM(encoder=48)):
        batch = whole(library.open(spec))
        is_said_BT = batch["labels_BT"] >= 0
        assert (batch["tokens_BT"][:, 0] == library.vocabulary.pad_id).all()
        assert (batch["tokens_BT"][:, 1:] == np.where(is_said_BT, batch["labels_BT"], 0)[:, :-1])[
            is_said_BT[:, 1:]
        ].all()
        assert ((batch["documents_BT"] >= 0) == is_said_BT).all()


@pytest.mark.parametrize(("rate", "mean"), [(0.15, 3.0), (0.5, 8.0), (0.3, 1.0)])
def test_as_much_is_said_in_as_many_spans_as_was_asked_for(
    library: Harbour, rate: float, mean: float
) -> None:
    spec = Spans(encoder=120, rate=rate, mean=mean)
    most = spec.text_tokens(64)
    noise, spans = spec.cut(most)
    assert noise / most == pytest.approx(rate, abs=0.02) and noise / spans == pytest.approx(mean, rel=0.15)
    assert all(size <= room for size, room in zip(spec.sides(most), (120, 64), strict=True))
    rows = library.open(spec)
    batch, marks = whole(rows), sentinels(library.vocabulary, spans)
    full = [row for row in range(len(rows)) if rows._sizes_P[row] == most][:40]
    begun = []
    for row in full:
        read, said = sides(batch, row)
        assert [token for token in read if token in marks] == marks == [t for t in said if t in marks]
        assert (len(read), len(said)) == spec.sides(most) and said[0] == marks[0]
        begun.append(read.index(marks[0]))
    assert len(full) == 40 and len(set(begun)) > 3


def test_a_text_is_the_prefix_that_was_read_and_what_is_said(library: Harbour) -> None:
    rows, vocabulary = library.open(PrefixLM(encoder=48)), library.vocabulary
    batch, text = whole(rows), b""
    cuts = set()
    for row in range(len(rows)):
        read, said = sides(batch, row)
        assert read.pop() == vocabulary.end_id and read and len(read) + len(said) <= 48
        cuts.add(len(read) / (len(read) + len(said)))
        text += vocabulary.bytes_of([*read, *said])
    assert len(cuts) > 50
    everything = b"".join(written(library, "train"))
    assert len(text) > 0.99 * len(everything)  # all but single tokens left at a document's end
    assert text[:2000] == everything[:2000]


def test_sentinels_that_a_vocabulary_lacks_are_refused_with_how_many_and_the_way_out(
    harbour: Harbour,
) -> None:
    few = harbour.with_sentinels(5)
    assert len(few.open(Spans(encoder=24))) > 0
    wanted = (
        r"tokenizer\.specials: objective spans needs up to 16 sentinels, the vocabulary has 5;"
        r" add <\|s5\|> to <\|s15\|>.*tokenizer=bpe4k_spans"
    )
    with pytest.raises(ConfigError, match=wanted):
        few.open(Spans())


def test_the_tokenizer_of_the_way_out_has_the_sentinels_it_names() -> None:
    made = yaml.safe_load((Path(__file__).parents[4] / "conf/specials/spans.yaml").read_text())
    assert [f"<|s{n}|>" for n in range(64)] == [
        name for name in made["specials"] if name.startswith("<|s") and name[3].isdigit()
    ]
