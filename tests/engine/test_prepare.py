import json
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.engine.config.record import Record, identify


class Desk:
    """Runs `python -m atelier.engine.prepare` in a folder and publishes what it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, name, **run):
        path = self.folder / f"{name}.json"
        defaults = {
            "schema": 1,
            "version": 1,
            "config": {},
            "inputs": {},
            "scratch": str(self.folder / "scratch"),
        }
        path.write_text(json.dumps(defaults | run))
        done = subprocess.run(
            [sys.executable, "-m", "atelier.engine.prepare", str(path)], capture_output=True, text=True
        )
        return done, [json.loads(line) for line in done.stdout.splitlines()]

    def make(self, name, output, **run):
        target = self.folder / name
        done, lines = self.start(name, outputs={output: str(target)}, **run)
        assert done.returncode == 0, done.stdout + done.stderr
        body = json.loads((target / "body.json").read_text())
        assert lines[-1] == {"done": body["summary"]}
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


def test_every_verb_run_twice_gives_the_same_bytes(desk, texts):
    found = []
    for turn in ("a", "b"):
        curate = {"source": {"source": texts[0][0]}, "held_out": 0.2, "files": texts}
        corpus, one = desk.make(f"corpus-{turn}", "corpus", task="curate", config=curate)
        tokenizer, two = desk.make(
            f"tokenizer-{turn}",
            "tokenizer",
            task="learn_tokenizer",
            config={"tokenizer": {"vocab": 320}},
            inputs={"corpus_0": corpus},
        )
        _, three = desk.make(
            f"tokens-{turn}", "tokens", task="encode", inputs={"corpus": corpus, "tokenizer": tokenizer}
        )
        config = {"labels": {"source": texts[0][0]}, "files": texts}
        _, four = desk.make(f"labels-{turn}", "labels", task="label", config=config)
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
    one, two = (desk.make(name, "corpus", task="curate", config=config)[1] for name in "ab")
    assert one == two
    summary = json.loads((desk.folder / "a" / "body.json").read_text())["summary"]
    assert 5e6 < summary["bytes"] < 30e6
    assert 0.02 < summary["held_out_documents"] / summary["documents"] < 0.08


def test_a_users_error_is_one_line_of_json_and_its_exit_code_without_a_traceback_or_a_body(desk, tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a"}\n{"txt": "b"}\n')
    files = [[str(path), "0" * 64]]
    config = {"source": {"source": str(path)}, "held_out": 0.2, "files": files}
    done, lines = desk.start("x", task="curate", config=config, outputs={"corpus": str(tmp_path / "out")})
    assert done.returncode == 2
    assert lines[-1]["exit_code"] == 2
    assert lines[-1]["error"].startswith(f"{path}:2: field 'text' is missing; fields there: txt")
    assert done.stderr == ""
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
    done, lines = desk.start("x", task="curate", config=config, outputs={"corpus": str(tmp_path / "out")})
    assert (done.returncode, done.stderr) == (2, "")
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
    done, lines = desk.start("x", **run)
    assert (done.returncode, done.stderr) == (2, "")
    assert error in lines[0]["error"]


def test_a_damaged_input_is_named_and_nothing_is_published(desk, texts):
    config = {"source": {"source": texts[0][0]}, "held_out": 0.2, "files": texts}
    corpus, _ = desk.make("corpus", "corpus", task="curate", config=config)
    path = Path(corpus) / "documents.jsonl"
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    run = {"task": "learn_tokenizer", "config": {"tokenizer": {}}, "inputs": {"corpus_0": corpus}}
    done, lines = desk.start("x", outputs={"tokenizer": str(desk.folder / "out")}, **run)
    assert done.returncode == 1
    assert lines[-1]["error"] == f"{path}: content does not match its digest"
    assert not (desk.folder / "out" / "body.json").exists()


def test_preparation_never_loads_torch():
    code = "import sys, atelier.engine.prepare; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
