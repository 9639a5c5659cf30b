import io
import json
from pathlib import Path

import pytest
import yaml

from atelier import PROJECT
from atelier.engine.config.base import Json, parse
from atelier.engine.config.data import Source
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.task.prepare import ExtractConfig
from atelier.engine.data.triples import Triple, extract, first_sentence, triples
from atelier.engine.data.triples import tagger as find_with
from atelier.engine.io.artifact import ArtifactOutput, open_input
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import content_id, stdlib_files, stdlib_folder
from tests.engine.trainings import artifact

SOURCE = '''"""A module."""
class Boat(Vessel, abc.ABC):
    """A boat, e.g. a dinghy
    or a punt. It floats."""
    def row(self):
        """Row the boat."""
        if tired:
            raise Exhausted("no")
        raise
    class Mast:
        """What holds the sail."""
    def silent(self): ...
if True:
    def steer(to):
        """Steer to. Slowly."""
        def inner():
            """Not seen from outside."""
'''


def test_triples_of_source_name_module_class_bases_and_errors_with_the_heads_own_sentence():
    boat = "A boat, e.g. a dinghy or a punt."
    assert list(triples("fleet/boats.py", SOURCE)) == [
        Triple("Boat", "defined in", "fleet.boats", boat),
        Triple("Boat", "subclass of", "Vessel", boat),
        Triple("Boat", "subclass of", "abc.ABC", boat),
        Triple("row", "method of", "Boat", "Row the boat."),
        Triple("Boat.row", "raises", "Exhausted", "Row the boat."),
        Triple("Boat.Mast", "defined in", "fleet.boats", "What holds the sail."),
        Triple("steer", "defined in", "fleet.boats", "Steer to."),
    ]
    assert next(triples("fleet/__init__.py", SOURCE)).tail == "fleet"


def test_triples_of_other_text_come_from_sentences_that_say_what_something_is():
    text = (
        "The Atlantic is a deep ocean of the world. It is a pity. Ada Lovelace was an English mathematician!"
    )
    assert [triple[:3] for triple in triples("x.txt:3", text)] == [
        ("The Atlantic", "is a", "deep ocean"),
        ("Ada Lovelace", "is a", "English mathematician"),
    ]
    assert next(triples("x", text)).text == "The Atlantic is a deep ocean of the world."


def test_a_sentence_is_one_line_and_not_too_long():
    assert first_sentence("One\n  two.  Three.") == "One two."
    assert first_sentence("One or\n\nTwo.") == "One or"
    assert first_sentence("long " * 100) == first_sentence("One.") == ""


@pytest.fixture(scope="module")
def some_files():
    prefix = f"{stdlib_folder()}/"
    names = ("asyncio/", "json/", "email/")
    return [
        [path, content_id(path)] for path in stdlib_files() if path.removeprefix(prefix).startswith(names)
    ]


def test_triples_of_the_standard_library_are_in_the_split_of_their_document_and_stand_once(
    workshop, some_files
):
    corpus = workshop.curate(Source(), files=some_files)
    found = workshop.run("extract", {}, {"corpus": corpus}, "triples")
    lines = workshop.lines(found, "triples.jsonl")
    assert found.record.summary["train"] + found.record.summary["held_out"] == len(lines) > 300
    assert set(found.record.summary["relations"]) >= {"defined in", "method of", "raises", "subclass of"}
    assert len({(line["head"], line["relation"], line["tail"]) for line in lines}) == len(lines)
    splits = {}
    for document in workshop.lines(corpus, "documents.jsonl"):
        for triple in triples(document["id"], document["text"]):
            splits.setdefault(triple[:3], set()).add(document["split"])
    for line in lines:
        where = splits[line["head"], line["relation"], line["tail"]]
        assert line["split"] == ("train" if "train" in where else "held_out")


def test_a_triple_of_both_splits_is_kept_for_training(workshop):
    """Sea n stands in documents n and n + 1."""
    texts = [f"Sea{n} is a deep ocean. Sea{n + 1} is a deep ocean." for n in range(40)]
    corpus = workshop.corpus(texts, 0.4)
    split = {line["text"]: line["split"] for line in workshop.lines(corpus, "documents.jsonl")}
    found = workshop.run("extract", {}, {"corpus": corpus}, "triples")
    lines = {line["head"]: line["split"] for line in workshop.lines(found, "triples.jsonl")}
    assert len(lines) == 41 and set(lines.values()) == {"train", "held_out"}
    for n in range(1, 40):
        where = {split[texts[n - 1]], split[texts[n]]}
        assert lines[f"Sea{n}"] == ("train" if "train" in where else "held_out")


def test_the_same_corpus_gives_the_same_bytes(workshop, some_files):
    corpus = workshop.curate(Source(), files=some_files)
    one, other = (workshop.run("extract", {}, {"corpus": corpus}, "triples") for _ in range(2))
    assert (Path(one.url) / "triples.jsonl").read_bytes() == (Path(other.url) / "triples.jsonl").read_bytes()
    assert json.loads((Path(one.url) / "triples.jsonl").read_text().splitlines()[0]).keys() == {
        *("head", "relation", "tail", "text", "split")
    }


def test_a_corpus_that_states_nothing_is_refused(workshop):
    corpus = workshop.corpus(["it rains", "it pours", "it snows"])
    with pytest.raises(DataError, match="no triples in 3 documents of corpus; give Python source"):
        workshop.run("extract", {}, {"corpus": corpus}, "triples")


def found_by(tagger: str, *texts: str) -> list[tuple[str, str, str]]:
    """The triples that a tagger of conf/tagger finds in these documents."""
    spec = yaml.safe_load((PROJECT / f"conf/tagger/{tagger}.yaml").read_text())[tagger]
    config = ExtractConfig(taggers={tagger: spec})
    find = find_with(tagger, config.taggers[tagger], config, Progress(io.StringIO()))
    return [triple[:3] for text in texts for triple in find("x", text)]


def test_triples_of_chinese_and_german_sentences() -> None:
    chinese = "北京是一座古老的城市。他是一位诗人。1953年，马军回到了苏州。李娜是画家。这是一本书。马军不在。"
    assert found_by("chinese", chinese) == [("北京", "是", "古老的城市"), ("李娜", "是", "画家")]
    german = "Der Rhein ist ein langer Fluss in Europa. Das ist ein Haus. Anna Schmidt war die erste Ärztin."
    assert found_by("german", german) == [
        ("Der Rhein", "ist ein", "langer Fluss"),
        ("Anna Schmidt", "ist ein", "erste Ärztin"),
    ]
    assert found_by("chinese", german) == found_by("german", chinese) == []


def listed(folder: Path, rows: list[dict[str, str]], **more: str) -> ExtractConfig:
    path = folder / "graph.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    spec = {"kind": "listed", "source": str(path), **more}
    return ExtractConfig.model_validate(
        {"taggers": {"graph": spec}, "files": {"graph": [(str(path), content_id(str(path)))]}}
    )


def test_given_triples_get_a_sentence_with_both_names_as_whole_words(tmp_path: Path) -> None:
    rows = [
        {"subject": "Oslo", "relation": "capital of", "object": "Norway"},
        {"subject": "Oslo", "relation": "on", "object": "Mars"},
        {"subject": "art", "relation": "is", "object": "Nor"},  # only inside of words
        {"subject": "北京", "relation": "首都", "object": "中国"},
        {"subject": "中", "relation": "of", "object": "国"},
    ]
    config = listed(tmp_path, rows)
    find = find_with("graph", config.taggers["graph"], config, Progress(io.StringIO()))
    text = "We start in Oslo, the capital of Norway. Oslo is old. 北京是中国的首都。"
    assert [(one.head, one.relation, one.tail, one.text) for one in find("x", text)] == [
        ("Oslo", "capital of", "Norway", "We start in Oslo, the capital of Norway."),
        ("中", "of", "国", "北京是中国的首都。"),
        ("北京", "首都", "中国", "北京是中国的首都。"),
    ]


def test_given_triples_without_names_are_counted(tmp_path: Path) -> None:
    names = [("Oslo", "Norway"), (" ", "Norway"), ("Oslo", ""), ("Rome", "Rome ")]
    rows = [{"subject": head, "relation": "capital of", "object": tail} for head, tail in names]
    said = io.StringIO()
    config = listed(tmp_path, rows)
    find = find_with("graph", config.taggers["graph"], config, Progress(said))
    assert len(list(find("x", "Oslo is the capital of Norway."))) == 1
    assert "data.taggers.graph: 3 of 4 rows give no triple: subject or object is blank" in said.getvalue()


def test_a_triple_without_a_field_is_named_by_file_and_row(tmp_path: Path) -> None:
    config = listed(tmp_path, [{"subject": "a", "object": "b"}])
    with pytest.raises(DataError, match=r"graph\.jsonl:1: field 'relation' is missing.*data\.taggers\.graph"):
        find_with("graph", config.taggers["graph"], config, Progress(io.StringIO()))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"kind": "sentences", "pattern": "(?P<head>a"}, "is no regular expression"),
        ({"kind": "sentences", "pattern": "(?P<head>a)"}, r"has no group \(\?P<tail>"),
        ({"kind": "sentence"}, "did you mean sentences"),
    ],
)
def test_a_tagger_that_cannot_work_is_refused(spec: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(ExtractConfig, {"taggers": {"mine": spec}}, "config")


def extracted(folder: Path, text: str, **taggers: dict[str, str]) -> tuple[dict[str, Json], list[str]]:
    """The summary of the triples of a corpus of this text, and the warnings."""
    line = json.dumps({"id": "a", "text": text, "split": "train"}) + "\n"
    corpus = open_input(
        artifact(folder / "corpus", "corpus", {"documents.jsonl": line.encode()}, documents=1)
    )
    said = io.StringIO()
    config = ExtractConfig.model_validate({"taggers": taggers})
    found = extract(config, corpus, ArtifactOutput(str(folder / "out")), folder, Progress(said))
    warnings = [
        line["warning"] for line in map(json.loads, said.getvalue().splitlines()) if "warning" in line
    ]
    return found, warnings


def test_a_tagger_without_triples_is_warned_of_and_text_without_any_is_refused(tmp_path: Path) -> None:
    never = {"kind": "sentences", "pattern": "(?P<head>Q)(?P<tail>Z)"}
    found, warnings = extracted(tmp_path / "1", "Oslo is a city.", usual={"kind": "rules"}, never=never)
    assert found["train"] == 1 and warnings == ["data.taggers.never finds no triples in corpus"]
    with pytest.raises(DataError, match=r"data\.taggers: no triples in 1 documents .*pattern matches"):
        extracted(tmp_path / "2", "Oslo is a city.", never=never)
    with pytest.raises(DataError, match=r"data\.source: no triples .*\+language=chinese"):
        extracted(tmp_path / "3", "Nothing.")
