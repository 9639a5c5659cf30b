"""Generated text: the same bytes after any number of stops, and no end where it was cut."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from atelier.engine.config.generation import ROWS, Written
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.encode import encode
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input
from atelier.engine.io.fork_server import Process
from atelier.engine.write import SPOOL, _keep, _text, _texts, write
from tests.engine.scored_models import Study
from tests.engine.trainings import artifact
from tests.forks import start_into

DOCUMENTS = 4 * ROWS
ASKED = Written(by="model", documents=0, prefix=8, tokens=20, seed=3)


class Desk:
    """A model and the documents that it continues."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.study = folder, Study(folder / "study")
        self.model = self.study.model(init_std=0.2)
        lines = [
            {
                "id": str(n), "text": f"Poem {n}: the sea is {n * 7} fathoms deep.", "group": str(n),
                "split": "held_out" if n % 11 == 5 else "train",
            }
            for n in range(DOCUMENTS)
        ]  # fmt: skip
        raw = "".join(json.dumps(line) + "\n" for line in lines).encode()
        self.lines = lines
        self.corpus = open_input(
            artifact(folder / "corpus", "corpus", {"documents.jsonl": raw}, documents=len(lines))
        )

    def run(self, place: str) -> RunFile:
        inputs = {"model": self.model, "corpus": self.corpus}
        run = self.study.run_file("write", ASKED.model_dump(mode="json"), inputs)
        target = self.folder / place
        scratch = self.folder / "scratch" / place
        scratch.mkdir(parents=True)
        return run.model_copy(update={"outputs": {"corpus": str(target)}, "scratch": str(scratch)})

    def started(self, place: str) -> Process:
        path = self.folder / f"{place.replace('/', '-')}.json"
        path.write_text(self.run(place).text())
        env = os.environ | {"PYTHONWARNINGS": "ignore"}
        with open(os.devnull, "w") as nothing:
            out = nothing.fileno()
            return start_into("tests.parity.gang", ["atelier.engine.write", str(path)], env, out, out)

    def written(self, place: str) -> bytes:
        return (self.folder / place / "documents.jsonl").read_bytes()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    yield Desk(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def whole(desk: Desk) -> bytes:
    summary = write(desk.run("whole/payload-1"), ASKED)
    found = desk.written("whole/payload-1")
    lines = [json.loads(line) for line in found.splitlines()]
    assert [line["id"] for line in lines] == [line["id"] for line in desk.lines]
    assert summary["cut"] == sum(line.get("cut", False) for line in lines) > ROWS
    assert summary["written"] == sum(line["split"] == "train" for line in lines) > summary["cut"]
    assert [path.name for path in (desk.folder / "whole").iterdir()] == ["payload-1"]  # no spool is left
    return found


def kept(desk: Desk, place: str) -> list[Path]:
    return sorted((desk.folder / place).glob(f"{SPOOL}*/*.jsonl"))


def test_what_was_killed_goes_on_where_it_stopped_and_gives_the_same_bytes(desk: Desk, whole: bytes) -> None:
    for turn in range(2):
        process = desk.started(f"killed/payload-{turn}")
        while len(kept(desk, "killed")) <= turn:
            assert process.poll() is None
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not (desk.folder / f"killed/payload-{turn}" / "body.json").exists()
    assert 2 <= len(kept(desk, "killed")) <= DOCUMENTS // ROWS
    assert desk.started("killed/payload-9").wait() == 0
    assert desk.written("killed/payload-9") == whole
    assert not kept(desk, "killed")


def test_what_is_kept_is_not_written_again_unless_it_is_damaged(desk: Desk, whole: bytes) -> None:
    process = desk.started("kept/payload-1")
    while len(kept(desk, "kept")) < 2:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    first, second, *_ = kept(desk, "kept")
    texts = _texts(str(first))
    assert texts is not None and len(texts) == ROWS
    _keep(str(first), [{"text": f"kept {n}"} for n in range(ROWS)])
    second.write_bytes(second.read_bytes()[:-9])
    write(desk.run("kept/payload-2"), ASKED)
    found = [json.loads(line) for line in desk.written("kept/payload-2").splitlines()]
    expected = [json.loads(line) for line in whole.splitlines()]
    train = [n for n, line in enumerate(expected) if line["split"] == "train"]
    assert [found[n]["text"] for n in train[:ROWS]] == [f"kept {n}" for n in range(ROWS)]
    assert [found[n] for n in train[ROWS:]] == [expected[n] for n in train[ROWS:]]


def encoded(desk: Desk, documents: bytes) -> list[np.ndarray]:
    """The training documents' tokens."""
    source: ArtifactInput = open_input(
        artifact(desk.folder / "again", "corpus", {"documents.jsonl": documents}, documents=DOCUMENTS)
    )
    place = desk.folder / "tokens"
    output = ArtifactOutput(str(place))
    encode(source, desk.study.vocabulary, output, desk.study.scratch, desk.study.progress)
    ends = np.load(place / "train.ends.npy")
    return np.split(np.fromfile(place / "train.bin", "<u2"), ends[:-1])


def test_a_text_that_was_cut_has_no_end_token_and_one_that_ended_has_one(desk: Desk, whole: bytes) -> None:
    lines = [line for line in map(json.loads, whole.splitlines()) if line["split"] == "train"]
    documents, end = encoded(desk, whole), desk.study.vocabulary.end_id
    assert len(documents) == len(lines)
    for line, tokens in zip(lines, documents, strict=True):
        assert (tokens[-1] == end) == (not line.get("cut")) and end not in tokens[:-1]
        assert desk.study.vocabulary.decode(tokens) == line["text"]


def test_half_of_a_character_is_left_out_where_the_text_was_cut(desk: Desk) -> None:
    vocabulary = desk.study.vocabulary
    begun, ids = (vocabulary.encode("so: "), "so: "), vocabulary.encode("d\u00e9j\u00e0")[:-1]
    assert _text(vocabulary, begun, ids, has_end=False) == {"text": "so: déj", "cut": True}
    assert _text(vocabulary, begun, ids, has_end=True) == {"text": "so: déj\ufffd"}
