"""Attributes of paragraphs: given by labels of documents, by text source, or found in other languages."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config import annotations
from atelier.engine.config.annotations import Described
from atelier.engine.config.base import Json
from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.objective.control import Control
from atelier.engine.data.scripts import is_unseparated
from atelier.engine.data.words_of_text import words_in
from atelier.engine.io.artifact import ArtifactInput
from tests.engine.data.conftest import Workshop

GENRES = ("general", "law", "novel")
TEXT = "The harbour of the town is good and safe, and the boats that lie there are {n} in number. "


@pytest.fixture
def corpus(workshop: Workshop) -> ArtifactInput:
    return workshop.corpus([TEXT.format(n=n) for n in range(12)], 0.3)


def ids(workshop: Workshop, corpus: ArtifactInput) -> dict[str, str]:
    """Each document's text and id."""
    return {line["text"]: line["id"] for line in workshop.lines(corpus, "documents.jsonl")}


def described(
    workshop: Workshop,
    corpus: ArtifactInput,
    rows: list[dict[str, Json]],
    genre: str = "",
    sources: int = 1,
    **more: Json,
) -> list[dict[str, Any]]:
    """The lines of attributes of a corpus with these labels."""
    path = workshop.folder / f"labels-{workshop.count}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    settings = Described.model_validate({"source": str(path), **more})
    config = {"attributes": settings.model_dump(), "genre": genre, "genres": GENRES, "sources": sources,
              "files": workshop.files(Source(source=str(path))) if rows else []}  # fmt: skip
    made = workshop.run("describe", config, {"corpus": corpus}, "attributes")
    return workshop.lines(made, "attributes.jsonl")


def test_labels_give_what_they_name_and_rules_the_rest(workshop: Workshop, corpus: ArtifactInput) -> None:
    known = ids(workshop, corpus)
    first, second = (known[TEXT.format(n=n)] for n in (0, 1))
    rows: list[dict[str, Any]] = [
        {"document": first, "genre": "law", "topic": "ports", "keywords": ["pier", "buoy"]}
        | {"sentiment": "negative"},
        {"document": second, "keywords": "pier, quay"},
    ]  # fmt: skip
    lines = {line["text"]: line for line in described(workshop, corpus, rows, genre="novel")}
    one, two, three = (lines[TEXT.format(n=n)] for n in range(3))
    assert (one["genre"], one["topic"], one["sentiment"]) == ("law", "ports", "negative")
    assert one["keywords"] == ["pier", "buoy"] and two["keywords"] == ["pier", "quay"]
    assert two["genre"] == three["genre"] == "novel"
    assert two["sentiment"] == three["sentiment"] == "positive" and three["topic"] != "ports"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"genre": "sport"}, r":1: genre 'sport' is none of general, law, novel"),
        ({"genre": "lwa"}, "did you mean law"),
        ({"sentiment": "glad"}, "sentiment 'glad' is none of positive, negative, neutral"),
        ({"keywords": [1]}, "'keywords' is no list of texts"),
        ({"topic": 3}, "field 'topic' is a number, not text"),
        ({"genre": 0}, "field 'genre' is a number, not text"),
        ({"topic": []}, "field 'topic' is a list, not text"),
        ({"sentiment": False}, "field 'sentiment' is true or false, not text"),
        ({"topic": " "}, "field 'topic' is empty"),
        ({"Genre": "law"}, "field 'Genre' is no label; did you mean genre"),
        ({"gener": "law"}, "has none of the labels genre, .*did you mean genre"),
    ],
)
def test_a_label_that_nobody_knows_is_refused_with_its_line(
    workshop: Workshop, corpus: ArtifactInput, row: dict[str, Json], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        described(workshop, corpus, [{"document": "x", **row}], genre="law")


def test_labels_of_other_documents_are_refused_and_some_of_them_named(
    workshop: Workshop, corpus: ArtifactInput
) -> None:
    with pytest.raises(
        DataError, match=r"none of its 1 labels is of a document of corpus, whose ids are such as"
    ):
        described(workshop, corpus, [{"document": "elsewhere", "genre": "law"}], genre="law")
    rows: list[dict[str, Any]] = [
        {"document": name} | {"genre": "law"} for name in ids(workshop, corpus).values()
    ]
    described(workshop, corpus, [*rows, {"document": "elsewhere", "genre": "law"}])
    assert "data.attributes.source: 1 of 13 labels are of no document of corpus" in workshop.printed()
    with pytest.raises(DataError, match=r"field 'document' is missing.*data\.attributes\.document"):
        described(workshop, corpus, [{"genre": "law"}], genre="law")


def test_labels_of_none_of_several_sources_are_only_a_warning(
    workshop: Workshop, corpus: ArtifactInput
) -> None:
    described(workshop, corpus, [{"document": "elsewhere", "genre": "law"}], genre="law", sources=2)
    assert "none of its 1 labels is of a document of corpus" in workshop.printed()


def test_a_label_of_a_document_is_that_of_all_its_parts(workshop: Workshop) -> None:
    corpus = workshop.corpus(["\n\n".join(TEXT.format(n=n) for n in range(3000))], 0.3)
    every = [line["id"] for line in workshop.lines(corpus, "documents.jsonl")]
    name = every[0].partition("#")[0]
    assert len(every) > 1 and every[0] == f"{name}#1"
    lines = described(workshop, corpus, [{"document": name, "genre": "law"}], genre="novel")
    assert {line["genre"] for line in lines} == {"law"}


def test_two_labels_of_a_document_are_one_if_they_agree(workshop: Workshop, corpus: ArtifactInput) -> None:
    [name, *_] = ids(workshop, corpus).values()
    rows: list[dict[str, Any]] = [{"document": name, "genre": "law"}, {"document": name, "topic": "ports"}]
    lines = described(workshop, corpus, rows, genre="novel")
    assert [(line["genre"], line["topic"]) for line in lines if line["genre"] == "law"] == [("law", "ports")]
    with pytest.raises(DataError, match=r":2: genre of .* is not that of .*:1; leave one out"):
        described(workshop, corpus, [rows[0], {"document": name, "genre": "novel"}], genre="novel")


def test_given_keywords_beyond_the_number_are_counted_and_an_empty_list_is_kept(
    workshop: Workshop, corpus: ArtifactInput
) -> None:
    known = [*ids(workshop, corpus).items()]
    rows: list[dict[str, Any]] = [
        {"document": known[0][1], "keywords": ["a", "b", "c", "d", "e"]},
        {"document": known[1][1], "keywords": []},
    ]
    lines = {line["text"].strip(): line for line in described(workshop, corpus, rows, genre="law")}
    assert lines[known[0][0].strip()]["keywords"] == ["a", "b", "c"]
    assert lines[known[1][0].strip()]["keywords"] == []
    assert "2 given keywords of corpus are beyond it and left out; data.attributes.keywords=5" in (
        workshop.printed()
    )


def test_a_document_without_a_genre_that_models_know_is_refused(
    workshop: Workshop, corpus: ArtifactInput
) -> None:
    with pytest.raises(
        DataError, match=r"has no label with a genre, and by rules it is line.*general, law, novel"
    ):
        described(workshop, corpus, [])


def test_numbers_of_topics_keywords_and_paragraphs_and_their_lengths_are_settings(
    workshop: Workshop, corpus: ArtifactInput
) -> None:
    lines = described(workshop, corpus, [], genre="law", keywords=1, paragraphs=5, topics=1)
    assert len(lines) == 5 and {len(line["keywords"]) for line in lines} == {1}
    with pytest.raises(DataError, match="no paragraph of 60 to 70 characters"):
        described(workshop, corpus, [], genre="law", longest=70)


def test_words_of_german_and_of_chinese_text(tmp_path: Path) -> None:
    assert words_in("letters", tmp_path)("Größe und Übermaß") == ["Größe", "Übermaß"]
    assert words_in("latin", tmp_path)("Größe") == []
    assert words_in("characters", tmp_path)("北京城, Boote") == ["Boote", "北京", "京城"]


def test_scripts_with_blanks_beyond_thai_are_not_cut_into_pairs(tmp_path: Path) -> None:
    words = words_in("characters", tmp_path)
    assert words("대한민국의 수도") == ["대한민국의"]  # Korean
    assert words("საქართველო Ελλάδᾳἀ ኢትዮጵያ") == ["საქართველო", "Ελλάδᾳἀ", "ኢትዮጵያ"]
    assert words("ｆｕｌｌ thườngệ") == ["ｆｕｌｌ", "thườngệ"]
    assert words("ประ カナ ຄົນ") == ["ปร", "ระ", "カナ"]
    assert not any(map(is_unseparated, "한გኢệἀﬁｆ")) and all(map(is_unseparated, "กກကកあア漢ㄅ𠀀"))


def test_jieba_divides_chinese_text_and_keeps_its_dictionary_in_the_given_folder(tmp_path: Path) -> None:
    pytest.importorskip("jieba")
    assert words_in("jieba", tmp_path)("北京是一座古老的城市。") == ["北京", "一座", "古老", "城市"]
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]


def test_without_jieba_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotations, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"data.attributes.words: needs the package jieba.*pip install jieba"
    ):
        words_in("jieba", tmp_path)


def test_a_lexicon_of_another_language_finds_its_sentiment(workshop: Workshop) -> None:
    texts = [
        f"这座城市非常美丽，人们都很喜欢它，第{n}次来到这里的人也这么说，天气晴朗，海风吹来，花儿开放，鸟儿歌唱，孩子们在公园里玩耍，老人们坐在树下喝茶聊天。"
        for n in range(12)
    ]
    lines = described(workshop, workshop.corpus(texts, 0.3), [], genre="novel", words="characters",
                      positive=["美丽"], negative=["危险"])  # fmt: skip
    assert {line["sentiment"] for line in lines} == {"positive"} and all(
        len(line["keywords"]) == 3 for line in lines
    )


def test_genres_of_an_objective_are_named_once() -> None:
    with pytest.raises(ValueError, match="holds a name twice"):
        Control(genres=("law", "law"))
    assert Control(genres=GENRES, prompt_length=4).num_prompts == 12
