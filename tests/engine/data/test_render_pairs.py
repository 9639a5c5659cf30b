"""Prompts and their answers as conversations: fields of rows, translations, docstrings and signatures."""

import ast
import json
import shelve
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from atelier.engine.config.chats import Chats
from atelier.engine.config.error import DataError
from atelier.engine.data.standard_library import docstrings
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from tests.catalogues import as_catalogue
from tests.engine.data.conftest import Workshop
from tests.engine.data.test_render import model_with, tokenizer

PAIRS = [(f"How deep is {n}?", f"{n} fathoms.") for n in range(30)]


def of(workshop: Workshop, spec: Chats, sequence: int = 128) -> ArtifactInput:
    workshop.count += 1
    model = model_with(workshop.folder / f"model-{workshop.count}")
    config = {"chats": spec.model_dump(mode="json"), "sequence": sequence, "files": workshop.files(spec)}
    return workshop.run("render", config, {"model": model}, "chats")


def texts(chats: ArtifactInput, scratch: Path, split: str) -> list[tuple[str, str]]:
    """Of each row all of it, and what is learned."""
    vocabulary = Vocabulary.parse(tokenizer().to_str().encode(), "")
    ids, learned = (
        np.fromfile(chats.file(f"{split}.{end}", scratch), dtype=kind)
        for end, kind in (("bin", "<u2"), ("learned.bin", np.uint8))
    )
    ends = np.load(chats.file(f"{split}.ends.npy", scratch))[:-1]
    return [
        tuple(vocabulary.bytes_of(part.tolist()).decode() for part in (row, row[mask == 1]))
        for row, mask in zip(np.split(ids, ends), np.split(learned, ends), strict=True)
    ]


def test_a_prompt_and_its_answer_are_a_conversation(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"q": q, "a": a, "other": 1}) + "\n" for q, a in PAIRS))
    chats = of(workshop, Chats(source=str(path), prompt="q", answer="a", held_out=0.25))
    rows = [row for split in ("train", "held_out") for row in texts(chats, tmp_path, split)]
    assert len(rows) == 30 and {learned for _, learned in rows} == {a for _, a in PAIRS}
    assert all("How deep is" in whole for whole, _ in rows)


def test_all_answers_to_a_prompt_are_in_one_split(workshop: Workshop, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    many = [{"q": q, "a": f"{a} {n}"} for q, a in PAIRS for n in range(3)]
    path.write_text("".join(json.dumps(one) + "\n" for one in many))
    chats = of(workshop, Chats(source=str(path), prompt="q", answer="a", held_out=0.25))
    found = [
        {whole.partition("?")[0] for whole, _ in texts(chats, tmp_path, split)}
        for split in ("train", "held_out")
    ]
    assert not found[0] & found[1] and min(map(len, found)) > 3


def test_translations_of_a_catalogue_are_pairs(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "de.mo").write_bytes(as_catalogue(PAIRS))
    (tmp_path / "notes.jsonl").write_text("no pair\n")
    spec = Chats(source=str(tmp_path / "*.mo"), prompt="msgid", answer="msgstr", held_out=0.25)
    chats = of(workshop, spec)
    rows = [row for split in ("train", "held_out") for row in texts(chats, tmp_path, split)]
    assert {learned for _, learned in rows} == {a for _, a in PAIRS}


def test_the_standard_library_has_docstrings_and_their_signatures(workshop: Workshop, tmp_path: Path) -> None:
    chats = of(workshop, Chats(source="stdlib:json,shelve", held_out=0.25), sequence=512)
    rows = [row for split in ("train", "held_out") for row in texts(chats, tmp_path, split)]
    learned = {answer for _, answer in rows}
    assert "def loads(s, *, cls=None, object_hook=None" in " ".join(learned)
    assert all(answer.startswith("def ") for answer in learned)
    documented = [
        node
        for source in [*Path(json.__file__).parent.glob("*.py"), Path(shelve.__file__)]
        for node in ast.walk(ast.parse(source.read_bytes()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node)
    ]
    assert chats.record.summary["conversations"] == len(rows) == len(documented) > 10
    assert not any("\n\n" in whole.partition("def ")[0].split("user\n")[1].rstrip() for whole, _ in rows)


def test_a_signature_is_its_function_s() -> None:
    source = 'async def f(a: int, /, *b, c=1) -> str:\n    "Says."\nclass C:\n    "Is."\n'
    found = {each.text: each.signature for each in docstrings(source, "m.py")}
    assert found == {"Says.": "def f(a: int, /, *b, c=1) -> str", "Is.": ""}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("a", r"^tune.chats.source: no answer in .* ends within tune.sequence=2 tokens; tune.sequence=\d+ "),
        ("other", r"pairs.jsonl:1: field 'other' is missing.*tune.chats.on_error=skip"),
    ],
)
def test_an_error_names_the_keys_that_the_flow_has(
    workshop: Workshop, tmp_path: Path, answer: str, problem: str
) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps({"q": q, "a": a}) + "\n" for q, a in PAIRS))
    spec = Chats(source=str(path), prompt="q", answer=answer)
    config = {"chats": spec.model_dump(mode="json"), "sequence": 2, "files": workshop.files(spec)}
    config |= {"place": "tune.chats", "length": "tune.sequence"}
    with pytest.raises(DataError, match=problem):
        workshop.run("render", config, {"model": model_with(tmp_path / "model")}, "chats")


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"q": "How?"}, "field 'a' is missing; fields there: q"),
        ({"q": "How?", "a": 7}, "field 'a' is a number, not text"),
        ({"q": " ", "a": "x"}, "field 'q' is empty"),
    ],
)
def test_a_broken_pair_is_one_line_or_left_out(
    workshop: Workshop, tmp_path: Path, row: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "pairs.jsonl"
    lines = [{"q": q, "a": a} for q, a in PAIRS]
    path.write_text("".join(json.dumps(one) + "\n" for one in [*lines[:4], row, *lines[4:]]))
    with pytest.raises(DataError, match=rf"pairs.jsonl:5: {problem}"):
        of(workshop, Chats(source=str(path), prompt="q", answer="a"))
    found = of(workshop, Chats(source=str(path), prompt="q", answer="a", on_error="skip"))
    assert (found.record.summary["skipped"], found.record.summary["conversations"]) == (1, 30)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"source": "x.jsonl", "prompt": "q"}, "answer is empty"),
        ({"source": "x.jsonl", "answer": "a"}, "prompt is empty"),
        ({"source": "stdlib", "prompt": "q", "answer": "a"}, "prompt=q: pairs of the standard library"),
        ({"source": "stdlib", "field": "chat"}, "field=chat: pairs of the standard library"),
        ({"source": "stdlib-prose"}, "source=stdlib-prose: pairs of the standard library"),
    ],
)
def test_what_is_no_pair_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Chats.model_validate(given)


def test_conversations_keep_the_identity_that_they_had() -> None:
    plain = Chats(source="x.jsonl").as_identity()
    assert plain == {"source": "x.jsonl", "held_out": 0.05}
