import time
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.data.audit import index_words as building
from atelier.engine.data.audit import kept_runs, word_index
from atelier.engine.data.audit.documents import AHEAD, CorpusDocument, documents_of
from atelier.engine.data.audit.part_match import FoundParts, TooShort, scan
from atelier.engine.data.audit.word_index import WordIndex
from atelier.engine.data.corpus import CorpusLine, corpus_lines
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from tests.engine.data.audit.corpora import (
    Row,
    compared,
    corpus_of,
    drawn,
    index_of,
    indices,
    lines_of,
    spelled_of,
)
from tests.engine.data.conftest import Workshop
from tests.engine.data.curation.texts import han, text, words


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def search(workshop: Workshop, corpus: ArtifactInput, parts: list[str], window: int = 0) -> FoundParts:
    index = index_of(workshop, corpus, window or kept_runs.WINDOW)
    return WordIndex.open(index, workshop.folder).matches(parts, corpus, workshop.folder)


def scanned(workshop: Workshop, corpus: ArtifactInput, parts: list[str]) -> FoundParts:
    return scan(documents_of(corpus_lines(corpus, workshop.folder)), parts)


def documents(texts: list[str]) -> list[CorpusDocument]:
    """The second one goes on with the third."""
    return list(documents_of(cast(list[CorpusLine], lines_of(texts, cut=[1]))))


def rows(found: FoundParts) -> list[Row]:
    """With 0 for the longest run, which a match only tells by its place."""
    return [(match.part, match.document, 0, match.covered) for match in found.matches]


@pytest.mark.parametrize("seed", range(6))
def test_the_index_and_a_scan_find_what_a_comparison_of_all_words_finds(workshop: Workshop, seed: int):
    texts, parts = drawn(seed, 40, 40)
    lines = lines_of(texts, cut=range(0, 40, 3) if seed % 2 else ())
    corpus = corpus_of(workshop, lines, num_shards=seed % 3)
    found = search(workshop, corpus, parts)
    every = list(documents_of(corpus_lines(corpus, workshop.folder)))
    expected = compared(every, parts)
    assert len(expected) > 20
    assert rows(found) == [(part, document, 0, covered) for part, document, _, covered in expected]
    assert found == scanned(workshop, corpus, parts)
    for match, (_, _, longest, _) in zip(found.matches, expected, strict=True):
        document = every[match.document]
        assert (match.split, match.number, match.id) == (document.split, document.number, document.id)
        own, size = spelled_of(parts[match.part]), len(spelled_of(parts[match.part]))
        inside = spelled_of(document.text[match.begin : match.end])
        if "href" not in document.text:
            assert len(inside) == longest and any(own[n : n + longest] == inside for n in range(size))
        is_verbatim = parts[match.part].strip() in document.text
        form = "near" if longest < size else "verbatim" if is_verbatim else "words"
        assert (match.words, match.form) == (size, form)


def test_an_index_that_keeps_too_few_runs_is_caught(workshop: Workshop, monkeypatch: pytest.MonkeyPatch):
    texts, parts = drawn(1)
    corpus = corpus_of(workshop, lines_of(texts))
    monkeypatch.setattr(word_index, "WINDOW", 6)  # else it is refused
    missed = set(rows(scanned(workshop, corpus, parts))) - set(rows(search(workshop, corpus, parts, 6)))
    assert len(missed) > 5


def test_every_text_of_8_to_12_words_and_every_run_of_13_is_found(workshop: Workshop, rng):
    texts = [
        *(text(rng, 3) for _ in range(5)),
        "".join(han(rng, 40)),
        "<p>" + "<i>x</i> ".join(words(rng, 30)),
    ]
    parts, owners = [], []
    for owner, own in enumerate(texts):
        spelled = spelled_of(own)
        for size in range(8, 14):
            for first in range(len(spelled) - size + 1):
                more = words(rng, 20) if size == 13 else []
                parts.append(" ".join([*more, *spelled[first : first + size], *more]))
                owners.append(owner)
    found = search(workshop, corpus_of(workshop, lines_of(texts)), parts)
    assert [(match.part, match.document) for match in found.matches] == list(enumerate(owners))


def test_a_text_across_the_border_of_two_documents_does_not_match(workshop: Workshop, rng):
    own = [words(rng, 12) for _ in range(40)]
    parts = [" ".join(one[6:] + other[:6]) for one, other in pairwise(own)]
    for held_out in (2, 1000):
        corpus = corpus_of(workshop, lines_of([" ".join(one) for one in own], held_out=held_out))
        index = WordIndex.open(index_of(workshop, corpus), workshop.folder)
        assert not any(map(len, index.candidates(parts)))
        assert scanned(workshop, corpus, parts).matches == []


def test_a_cut_document_goes_on_with_the_next_line_of_its_split(workshop: Workshop, rng):
    own = [words(rng, 40) for _ in range(8)]
    part = " ".join(own[1][-6:] + own[2][:6])  # d1 and d2 train, d0 and d5 are held out
    over = " ".join(own[4][-10:] + own[6][:10])
    for cut, expected in (((), []), ((1, 4), [(0, 1), (1, 4)])):
        corpus = corpus_of(workshop, lines_of([" ".join(one) + "\n" for one in own], cut=cut))
        found = search(workshop, corpus, [part, over])
        assert [(match.part, match.document) for match in found.matches] == expected
        assert found == scanned(workshop, corpus, [part, over])
        assert all(match.form == "words" for match in found.matches)


def test_what_follows_a_cut_document_ends_at_a_word(workshop: Workshop, rng):
    long = " ".join(words(rng, 2000))
    (_, first, second) = documents(["", "begin\n", long])
    added = first.text.removeprefix("begin\n")
    assert AHEAD - 100 < len(added) <= AHEAD and long.startswith(added)
    assert long[len(added) - 1] == " " and second.text == long
    assert documents(["", "a", "b" * 9000])[1].text == "a" + "b" * AHEAD
    assert documents(["", "a", "b"])[1].text == "ab"


def test_forms_tell_text_as_written_from_other_markup_and_from_a_part_of_it(workshop: Workshop, rng):
    own = words(rng, 40)
    asked = " ".join(own).capitalize() + "?"
    lines = "\n".join(" ".join(own[n : n + 8]) for n in range(0, 40, 8))
    texts = [
        f"Answer: {asked} {text(rng, 3)}", lines, asked.upper(), f"<b>{asked}</b>", f'<img alt="{lines}">',
        " ".join(own[:20]), " ".join([*own[:20], "other", *own[20:28], "other", *own[28:]]),
        " ".join(own[:12]), " ".join([*own[:13], *own[32:]]), text(rng, 9),
    ]  # fmt: skip
    found = search(workshop, corpus_of(workshop, lines_of(texts)), [asked])
    got = {match.document: (match.form, match.covered, match.share) for match in found.matches}
    assert got == {
        0: ("verbatim", 40, 1.0), 1: ("words", 40, 1.0), 2: ("words", 40, 1.0), 3: ("verbatim", 40, 1.0),
        4: ("words", 40, 1.0), 5: ("near", 20, 0.5), 6: ("near", 40, 1.0), 8: ("near", 21, 21 / 40),
    }  # fmt: skip
    spans = {match.document: texts[match.document][match.begin : match.end] for match in found.matches}
    assert spans[0] == asked[:-1] and spans[4] == lines and spans[6] == " ".join(own[:20])


def test_parts_that_are_too_short_are_told_and_not_searched_for(workshop: Workshop, rng):
    own = words(rng, 30)
    parts = [" ".join(own[:7]), "", "<b></b>", " ".join(own[:8]), "，".join(han(rng, 3))]
    corpus = corpus_of(workshop, lines_of([" ".join(own)]))
    found = search(workshop, corpus, parts)
    assert found.too_short == [TooShort(0, 7), TooShort(1, 0), TooShort(2, 0), TooShort(4, 3)]
    assert [match.part for match in found.matches] == [3]
    assert search(workshop, corpus, []) == FoundParts([], []) == search(workshop, corpus, [])


@pytest.mark.parametrize("texts", [[], ["", "", "few words"]], ids=["no documents", "no runs"])
def test_a_corpus_without_runs_has_an_index_that_finds_nothing(workshop: Workshop, texts: list[str], rng):
    corpus = corpus_of(workshop, lines_of(texts))
    assert search(workshop, corpus, [text(rng, 2)]) == FoundParts([], [])


def test_the_number_of_a_document_is_its_row_in_the_tokens(workshop: Workshop, rng):
    texts = [text(rng, 3) for _ in range(12)]
    corpus = workshop.corpus(texts)
    tokenizer = workshop.tokenizer(corpus)
    tokens = workshop.tokens(corpus, tokenizer)
    vocabulary = Vocabulary.of(tokenizer, workshop.folder)
    index = workshop.run("index_words", {}, {"corpus": corpus}, "word_index")
    found = WordIndex.open(index, workshop.folder).matches(texts, corpus, workshop.folder)
    assert len(found.matches) == 12 and {match.split for match in found.matches} == {"train", "held_out"}
    for match in found.matches:
        side = TokenText(tokens, workshop.folder, match.split)
        begin, end = side.begins_D[match.number], side.ends_D[match.number]
        ids = vocabulary.encode_all([texts[match.part]])[0]
        assert side.tokens_N[begin : end - 1].tolist() == list(ids)


def test_the_index_does_not_depend_on_how_much_text_is_sorted_at_once(workshop: Workshop, monkeypatch):
    texts, _ = drawn(7)
    corpus = corpus_of(workshop, lines_of(texts))
    expected = indices(Path(index_of(workshop, corpus).url))
    monkeypatch.setattr(building, "_TEXT", 300)
    monkeypatch.setattr(building, "_SEGMENTS", 4)
    few = indices(Path(index_of(workshop, corpus).url))
    monkeypatch.setattr(building, "_ENTRIES", 100)
    fewer = indices(Path(index_of(workshop, corpus).url))
    assert expected == few == fewer and len(expected) == 6


def test_long_lists_of_documents_are_read_in_pieces(workshop: Workshop, monkeypatch: pytest.MonkeyPatch, rng):
    notice = text(rng, 4)
    corpus = corpus_of(workshop, lines_of([f"{text(rng, 1)}\n{notice}" for _ in range(100)]))
    index = WordIndex.open(index_of(workshop, corpus), workshop.folder)
    expected = [found.tolist() for found in index.candidates([notice, text(rng, 4), notice[20:]])]
    assert expected == [[*range(100)], [], [*range(100)]]
    monkeypatch.setattr(word_index, "_PAIRS", 7)
    assert [found.tolist() for found in index.candidates([notice, text(rng, 4), notice[20:]])] == expected


def test_only_the_shards_of_candidates_are_read(workshop: Workshop, rng):
    texts = [text(rng, 3) for _ in range(40)]
    corpus = corpus_of(workshop, lines_of(texts), num_shards=4)
    index = WordIndex.open(index_of(workshop, corpus), workshop.folder)
    for number in (0, 1, 3):
        (Path(corpus.url) / f"payload/shards/{number:05d}.jsonl.zst").unlink()
    parts = [texts[29], texts[21], texts[21][:-10], text(rng, 3)]
    found = index.matches(parts, corpus, workshop.folder).matches
    assert [(match.part, match.document) for match in found] == [(0, 29), (1, 21), (2, 21)]


def test_runs_with_one_hash_are_told_apart_on_the_text(workshop: Workshop, monkeypatch: pytest.MonkeyPatch):
    texts, parts = drawn(3, 20, 20)
    corpus = corpus_of(workshop, lines_of(texts))
    expected = scanned(workshop, corpus, parts)

    def same(hashes, n):
        return np.zeros(max(len(hashes) - n + 1, 0), dtype=np.uint64)

    monkeypatch.setattr(kept_runs, "ngram_hashes", same)
    monkeypatch.setattr("atelier.engine.data.audit.part_match.ngram_hashes", same)
    assert search(workshop, corpus, parts) == expected == scanned(workshop, corpus, parts)


def test_an_index_of_another_corpus_or_python_is_refused(workshop: Workshop, monkeypatch, rng):
    corpus, other = (corpus_of(workshop, lines_of([text(rng, 2)])) for _ in range(2))
    made = index_of(workshop, corpus)
    with pytest.raises(ConfigError, match=f"the index is of {corpus.record.fingerprint[:16]}"):
        WordIndex.open(made, workshop.folder).matches([], other, workshop.folder)
    monkeypatch.setattr(word_index, "unidata_version", "1.1.0")
    with pytest.raises(ConfigError, match=r"an index with unicode [0-9.]+, not 1\.1\.0"):
        WordIndex.open(made, workshop.folder)


@pytest.mark.parametrize(
    "of", ["a " * 200_000, "w" * 1_000_000, "<b>a</b> " * 30_000], ids=["run", "word", "marked"]
)
def test_hostile_texts_are_searched_in_time_as_they_are_long(workshop: Workshop, of: str):
    corpus = corpus_of(workshop, lines_of([of]))
    begin = time.process_time()
    found = search(workshop, corpus, ["a " * 500, "b " * 500])
    assert time.process_time() - begin < 1.5
    assert len(found.matches) == (of[1:] != of[:-1])
