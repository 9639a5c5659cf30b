"""Units of knowledge masking: names of entities, characters and words of Chinese text; hidden as a whole."""

import json
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

from atelier.engine.config.annotations import MaskingUnits
from atelier.engine.config.base import Json
from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.data import Source
from atelier.engine.config.error import DataError
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.data.datasets import knowledge, mlm
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.units import NameFinder, UnitFinder, marks_of
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from tests.engine.data.conftest import Workshop

SPECIALS = ("<|mask|>", "<|cls|>", "<|sep|>")
CITIES = ("北京", "上海", "南京", "成都")
CHINESE = [f"第{n}年，人们在{CITIES[n % 4]}写了很多书，王小明是一位著名的诗人。" for n in range(60)]
PLAIN = [f"In year {n} the Kingdom of the Two Sicilies had ships. They sailed far." for n in range(60)]
NAME = "Kingdom of the Two Sicilies"


def spans(words: Any, names: list[str], text: str, folder: Path) -> list[str]:
    """The units of a text."""
    found = UnitFinder(MaskingUnits(words=words, entities="x"), names, folder).spans(text)
    return [text[begin:end] for begin, end in found]


def test_the_longest_name_counts_and_a_part_of_a_word_is_none(tmp_path: Path) -> None:
    names = ["New York", "New York City", "art"]
    text = "An artist of New York City likes New York and art."
    assert spans("spelling", names, text, tmp_path) == ["New York City", "New York", "art"]
    assert len(NameFinder(["a", "ab ", "ab"])) == 1


def test_characters_of_chinese_are_units_and_names_in_them_are_whole(tmp_path: Path) -> None:
    assert spans("characters", ["北京"], "他在北京 in 1990 写书", tmp_path) == [
        "他",
        "在",
        "北京",
        "写",
        "书",
    ]


@pytest.mark.slow  # the dictionary takes seconds
def test_words_of_chinese_are_those_of_jieba(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    assert spans("jieba", ["王小明"], "王小明是著名的诗人 of art", tmp_path) == [
        "王小明",
        "是",
        "著名",
        "的",
        "诗人",
    ]


def test_a_name_is_found_in_any_normal_form_at_the_places_of_the_text(tmp_path: Path) -> None:
    whole, parts = "Việt Nam é", normalize("NFD", "Ở Việt Nam é.")
    assert spans("spelling", [whole], parts, tmp_path) == [normalize("NFD", whole)]
    assert spans("spelling", [normalize("NFD", "한국")], "한국 Việt", tmp_path) == ["한국"]
    assert spans("spelling", ["Vi", "Vie"], parts, tmp_path) == []  # parts of a word
    assert spans("spelling", ["Vi"], "Việt", tmp_path) == []
    assert NameFinder(["王", "é", normalize("NFD", "é"), "ab"]).num_short == 2


def test_names_found_and_too_short_are_counted_and_said(workshop: Workshop) -> None:
    tokens, _ = encoded(workshop, PLAIN, "spelling", [NAME, "Atlantis", "x", "y"])
    summary = dict(tokens.record.summary)
    assert (summary["names"], summary["names_found"], summary["names_too_short"]) == (2, 1, 2)
    assert "data.units.entities: 1 of 2 names are in corpus; 2 are too short" in workshop.printed()


def test_tokens_of_a_unit_are_marked_and_a_token_of_two_belongs_to_the_later() -> None:
    offsets = [(0, 2), (2, 3), (3, 5), (5, 6), (6, 8)]
    assert marks_of([(0, 3), (4, 8)], offsets).tolist() == [1, 2, 1, 2, 2]
    assert marks_of([(2, 3)], offsets).tolist() == [0, 1, 0, 0, 0] and not marks_of([], offsets).any()
    assert marks_of([(0, 1), (1, 2)], [(0, 1), (0, 1), (1, 2)]).tolist() == [1, 2, 1]  # bytes of a character


def encoded(
    workshop: Workshop, texts: list[str], words: str, names: list[str], sources: int = 1
) -> tuple[ArtifactInput, Vocabulary]:
    corpus = workshop.corpus(texts, 0.2)
    tokenizer = workshop.tokenizer(corpus, vocab=330, specials=SPECIALS)
    path = workshop.folder / f"names-{workshop.count}.jsonl"
    path.write_text("".join(json.dumps({"name": name}) + "\n" for name in names))
    units = MaskingUnits.model_validate({"words": words, "entities": str(path) if names else ""})
    files = workshop.files(Source(source=str(path))) if names else []
    config: dict[str, Json] = {"units": units.model_dump(mode="json"), "files": files, "sources": sources}
    tokens = workshop.run("encode", config, {"corpus": corpus, "tokenizer": tokenizer}, "tokens")
    return tokens, Vocabulary.of(tokenizer, workshop.folder)


def hidden(tokens: ArtifactInput, vocabulary: Vocabulary, folder: Path) -> list[str]:
    """The runs of hidden tokens of all rows, as text."""
    rows = mlm.open_rows(MLM(rate=0.3), tokens, vocabulary, folder, split="train", sequence=96, seed=3)
    found = []
    for labels_T in rows.batch(np.arange(len(rows)))["labels_BT"]:
        places = np.flatnonzero(labels_T != NOT_SCORED)
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            found.append(vocabulary.decode(labels_T[run].tolist()))
    return found


def test_a_name_of_an_entity_is_hidden_as_a_whole_or_not_at_all(workshop: Workshop) -> None:
    tokens, vocabulary = encoded(workshop, PLAIN, "spelling", [NAME])
    assert dict(tokens.record.summary)["names_found"] == 1
    runs = hidden(tokens, vocabulary, workshop.folder)
    assert any(NAME in run for run in runs)
    parts = [run for run in runs if NAME not in run and ("Sicilies" in run or "Kingdom" in run)]
    assert parts == []
    plain, vocabulary = encoded(workshop, PLAIN, "spelling", [])
    runs = hidden(plain, vocabulary, workshop.folder)
    assert any("Sicilies" in run and NAME not in run for run in runs)  # without the list it is not one unit


def test_without_units_tokens_have_the_same_files_and_ids(workshop: Workshop) -> None:
    plain, _ = encoded(workshop, PLAIN, "spelling", [])
    marked, _ = encoded(workshop, PLAIN, "spelling", [NAME])
    assert set(marked.names()) - set(plain.names()) == {"train.units.bin", "held_out.units.bin"}
    for name in ("train.bin", "held_out.bin"):
        assert (
            plain.file(name, workshop.folder).read_bytes() == marked.file(name, workshop.folder).read_bytes()
        )
    text = TokenText(marked, workshop.folder, "train")
    assert text.units_N is not None and len(text.units_N) == len(text)
    assert TokenText(plain, workshop.folder, "train").units_at(np.arange(3)) is None


def test_characters_of_chinese_text_are_hidden_alone_not_runs_of_sixteen_tokens(workshop: Workshop) -> None:
    sizes = {}
    for words in ("spelling", "characters"):
        tokens, vocabulary = encoded(workshop, CHINESE, words, [])
        sizes[words] = max(map(len, hidden(tokens, vocabulary, workshop.folder)))
    assert sizes["characters"] < sizes["spelling"]
    units = TokenText(tokens, workshop.folder, "train").units_N
    assert units is not None and (units == 1).mean() > 0.3


def test_names_that_occur_nowhere_are_refused(workshop: Workshop) -> None:
    with pytest.raises(DataError, match=r"data.units.entities: none of its 2 names is in corpus"):
        encoded(workshop, PLAIN, "spelling", ["Atlantis", "Ships Ahoy"])
    encoded(workshop, PLAIN, "spelling", ["Atlantis"], sources=2)  # perhaps they are in the other
    assert "0 of 1 names are in corpus" in workshop.printed()


@pytest.mark.parametrize("entities", ["triples", ""])
def test_sentences_of_triples_hide_names_as_a_whole_too(workshop: Workshop, entities: str) -> None:
    texts = [f"The Kingdom{n} of the Two Sicilies is a warm country of the south." for n in range(60)]
    corpus = workshop.corpus(texts, 0.2)
    tokenizer = workshop.tokenizer(corpus, vocab=330, specials=SPECIALS)
    vocabulary = Vocabulary.of(tokenizer, workshop.folder)
    pattern = r"The (?P<head>Kingdom\d+ of the Two Sicilies) is a (?P<tail>warm country)"
    taggers: dict[str, Json] = {"usual": {"kind": "sentences", "pattern": pattern}}
    config: dict[str, Json] = {"taggers": taggers, "marked": {"units": {"entities": entities}}}
    triples = workshop.run("extract", config, {"corpus": corpus}, "triples")
    rows = knowledge.open_rows(
        Knowledge(rate=0.4), triples, vocabulary, workshop.folder, split="train", sequence=128, seed=3
    )
    batch = rows.batch(np.arange(len(rows)))
    hidden_whole = hidden_part = 0
    for labels_T in batch["labels_BT"]:
        said = vocabulary.decode([int(token) for token in labels_T[labels_T != NOT_SCORED]])
        hidden_whole += "of the Two Sicilies" in said
        hidden_part += "Sicilies" in said and "of the Two Sicilies" not in said
    assert hidden_whole > 3 and not hidden_part if entities else hidden_part > 3
