import json
from pathlib import Path

import pytest

from atelier.engine.config.data import Source
from atelier.engine.config.error import DataError
from atelier.engine.data.triples import Triple, first_sentence, triples
from atelier.engine.io.source_files import content_id, stdlib_files, stdlib_folder

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
    with pytest.raises(DataError, match="no triples in 3 documents; give Python source"):
        workshop.run("extract", {}, {"corpus": corpus}, "triples")
