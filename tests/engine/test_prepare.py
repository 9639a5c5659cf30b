import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.engine.config.record import Record, identify
from atelier.engine.io.process import read_run
from atelier.engine.prepare import prepare
from tests.forks import start


class Desk:
    """Runs `python -m atelier.engine.prepare` in a folder and publishes what it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run_file(self, name, **run):
        path = self.folder / f"{name}.json"
        defaults = {
            "schema": 1,
            "version": 1,
            "config": {},
            "inputs": {},
            "scratch": str(self.folder / "scratch"),
        }
        path.write_text(json.dumps(defaults | run))
        return str(path)

    def start(self, name, *, is_forked=True, **run):
        """In a process: its exit code, what it writes on stderr, and its lines."""
        words = ["atelier.engine.prepare", self.run_file(name, **run)]
        if is_forked:
            process = start("tests.parity.gang", words, os.environ | {"PYTHONWARNINGS": "ignore"})
        else:
            process = subprocess.Popen([sys.executable, "-m", *words], stdout=-1, stderr=-1, text=True)
        said, errors = process.communicate(timeout=120)
        return process.returncode, errors, [json.loads(line) for line in said.splitlines()]

    def make(self, name, output, *, is_here=False, is_forked=True, **run):
        """The artifact and its files, made by this process or another one."""
        target = self.folder / name
        if is_here:
            prepare(read_run(self.run_file(name, outputs={output: str(target)}, **run)), io.StringIO())
        else:
            code, errors, lines = self.start(name, outputs={output: str(target)}, is_forked=is_forked, **run)
            assert code == 0, (errors, lines)
        body = json.loads((target / "body.json").read_text())
        assert is_here or lines[-1] == {"done": body["summary"]}
        assert sorted(p.name for p in target.iterdir()) == sorted(
            ["body.json", *(f["path"] for f in body["files"])]
        )
        record = Record(
            kind=output, name=name, fingerprint=identify(output, 1, {}, {}), version=1, identity={},
            parents={}, files=tuple(body["files"]), summary=body["summary"],
        )  # fmt: skip
        (target / "record.json").write_text(record.sealed().text())
        return str(target), body["files"]


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture
def texts(tmp_path):
    import hashlib

    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(
            json.dumps({"text": f"line {n} of the sea, {n * n} waves", "label": str(n % 3)}) + "\n"
            for n in range(50)
        )
    )
    return [[str(path), hashlib.sha256(path.read_bytes()).hexdigest()]]


def test_every_verb_run_in_two_processes_gives_the_same_bytes(desk, texts):
    found = []
    for turn in ("a", "b"):
        how = {"is_here": turn == "a"}
        curate = {"source": {"source": texts[0][0]}, "held_out": 0.2, "files": texts}
        corpus, one = desk.make(f"corpus-{turn}", "corpus", task="curate", config=curate, **how)
        tokenizer, two = desk.make(
            f"tokenizer-{turn}",
            "tokenizer",
            task="learn_tokenizer",
            config={"tokenizer": {"vocab": 320}},
            inputs={"corpus_0": corpus},
            **how,
        )
        inputs = {"corpus": corpus, "tokenizer": tokenizer}
        _, three = desk.make(f"tokens-{turn}", "tokens", task="encode", inputs=inputs, **how)
        config = {"labels": {"source": texts[0][0]}, "files": texts}
        _, four = desk.make(f"labels-{turn}", "labels", task="label", config=config, **how)
        found.append([one, two, three, four])
    assert found[0] == found[1]
    assert [[f["path"] for f in files] for files in found[0]] == [
        ["documents.jsonl"],
        ["tokenizer.json"],
        ["train.bin", "train.ends.npy", "held_out.bin", "held_out.ends.npy", "held_out.bytes.npy"],
        ["train.jsonl", "test.jsonl"],
    ]


def test_the_standard_library_gives_the_same_corpus_in_two_processes(desk):
    from atelier.engine.config.data import Source
    from atelier.engine.io.source_files import content_id, files_of

    files = [[path, content_id(path)] for path in files_of(Source())]
    config = {"source": {}, "held_out": 0.05, "files": files}
    one, two = (
        desk.make(name, "corpus", task="curate", config=config, is_forked=name == "a")[1] for name in "ab"
    )
    assert one == two
    summary = json.loads((desk.folder / "a" / "body.json").read_text())["summary"]
    assert 5e6 < summary["bytes"] < 30e6
    assert 0.02 < summary["held_out_documents"] / summary["documents"] < 0.08


def test_a_users_error_is_one_line_of_json_and_its_exit_code_without_a_traceback_or_a_body(desk, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\n{"txt": "b"}\n')
    files = [[str(path), "0" * 64]]
    config = {"source": {"source": str(path)}, "held_out": 0.2, "files": files}
    run = {"task": "curate", "config": config, "outputs": {"corpus": str(tmp_path / "out")}}
    code, errors, lines = desk.start("x", is_forked=False, **run)
    assert code == 2
    assert lines[-1]["exit_code"] == 2
    assert lines[-1]["error"].startswith(f"{path}:2: field 'text' is missing; fields there: txt")
    assert errors == ""
    assert not (tmp_path / "out" / "body.json").exists()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"\ud800": "b"}, r"field 'text' is missing; fields there: \ud800"),
        ({"text": "a\udce9"}, "field 'text' holds half of a surrogate pair at character 1"),
        ({f"field {n}": n for n in range(10**5)}, "field 'text' is missing; fields there: field 0, "),
    ],
    ids=range(3),
)
def test_a_key_or_text_that_is_not_utf8_is_one_line_with_its_place(desk, tmp_path, row, problem):
    import hashlib

    path = tmp_path / "keys.jsonl"
    path.write_text('{"text": "a"}\n' + json.dumps(row) + "\n")
    files = [[str(path), hashlib.sha256(path.read_bytes()).hexdigest()]]
    config = {"source": {"source": str(path)}, "held_out": 0.2, "files": files}
    code, errors, lines = desk.start(
        "x", task="curate", config=config, outputs={"corpus": str(tmp_path / "out")}
    )
    assert (code, errors) == (2, "")
    error = lines[-1]["error"]
    assert error.startswith(f"{path}:2: {problem}") and len(error) < 400 and error.encode()


@pytest.mark.parametrize(
    ("run", "error"),
    [
        ({"task": "encod", "outputs": {}}, "run.task: encod is not a preparation task"),
        (
            {"task": "curate", "outputs": {}, "config": {"sauce": 1}},
            "config.sauce: no such key; did you mean source?",
        ),
        (
            {"task": "encode", "outputs": {"tokens": "/nowhere"}},
            "run.inputs: encode needs the input corpus; given: none",
        ),
        ({"task": "encode", "outputs": {}, "scratches": ""}, "no such key; did you mean scratch?"),
    ],
)
def test_a_run_file_that_cannot_be_followed_says_why(desk, run, error):
    code, errors, lines = desk.start("x", **run)
    assert (code, errors) == (2, "")
    assert error in lines[0]["error"]


def test_a_damaged_input_is_named_and_nothing_is_published(desk, texts):
    config = {"source": {"source": texts[0][0]}, "held_out": 0.2, "files": texts}
    corpus, _ = desk.make("corpus", "corpus", task="curate", config=config, is_here=True)
    path = Path(corpus) / "documents.jsonl"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    run = {"task": "learn_tokenizer", "config": {"tokenizer": {}}, "inputs": {"corpus_0": corpus}}
    code, _, lines = desk.start("x", outputs={"tokenizer": str(desk.folder / "out")}, **run)
    assert code == 1
    assert lines[-1]["error"] == f"{path}: content does not match its digest"
    assert not (desk.folder / "out" / "body.json").exists()


def test_preparation_never_loads_torch():
    code = "import sys, atelier.engine.prepare; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
