"""Two ranks of a split model write the same scores, imitations, texts and answers as one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.engine.config.generation import Imitate, Written
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.encode import encode
from atelier.engine.io.artifact import ArtifactInput, open_input
from tests.checkout import python_path
from tests.engine.scored_models import TEXTS, Study
from tests.engine.trainings import artifact
from tests.forks import start_gang

pytestmark = pytest.mark.slow

STORY = "Poem {n} has a sea. It is {n} fathoms deep. Boats go there often. Nobody is lost. "
SPLITS = ("held_out", "train")
LAYOUTS = [{"tensor": 2}, {"shard": 2}, {"pipeline": 2}, {"replicate": 2}]


class Verbs(Study):
    """A model, and what it is asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.speaker = self.model("speaker", num_heads=4)
        lines = [
            {"id": str(n), "text": STORY.format(n=n) * 4, "group": str(n), "split": SPLITS[n % 4 > 0]}
            for n in range(40)
        ]
        files = {"documents.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode()}
        self.long = open_input(artifact(folder / "long", "corpus", files, documents=len(lines)))
        self.long_tokens = self._made(
            "longer",
            lambda output: encode(self.long, self.vocabulary, output, self.scratch, self.progress),
        )

    def did(
        self, verb: str, config: dict[str, Any], layout: dict[str, int], **inputs: ArtifactInput
    ) -> bytes:
        """The files that a verb's gang writes."""
        axes = InferenceLayout.model_validate(layout)
        output = {"evaluate": "one", "imitate": "imitations", "write": "corpus"}[verb]
        run: RunFile = self.run_file(verb, config, inputs, output)
        run = run.model_copy(update={"layout": axes.parallel(1).model_copy(update={"device": "cpu"})})
        path = self.folder / f"{verb}-{'-'.join(layout) or 'one'}.json"
        path.write_text(run.text())
        start_gang("tests.parity.gang", self.folder, axes.ranks, f"atelier.engine.{verb}", str(path))
        (file,) = (each for each in Path(run.outputs[output]).iterdir() if each.name != "body.json")
        return file.read_bytes()


@pytest.fixture(scope="module")
def verbs(tmp_path_factory: pytest.TempPathFactory) -> Verbs:
    torch.set_num_threads(1)
    return Verbs(tmp_path_factory.mktemp("verbs"))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_scores_are_those_of_one_process(verbs: Verbs, layout: dict[str, int]) -> None:
    def scores(layout: dict[str, int]) -> dict[str, Any]:
        settings = {"max_tokens": 3000, "sequence": 16, "sample": "Poem"} | layout
        config = {"score": settings, "targets": {"one": {"text": True, "labels": True}}, "threads": 1}
        inputs = {"tokens": verbs.tokens, "tokenizer": verbs.tokenizer, "labels": verbs.labels()}
        return json.loads(verbs.did("evaluate", config, layout, **{"model.one": verbs.speaker}, **inputs))

    one, two = scores({}), scores(layout)
    assert two.pop("loss") == pytest.approx(one.pop("loss"), rel=1e-6)
    assert two.pop("bits_per_byte") == pytest.approx(one.pop("bits_per_byte"), rel=1e-6)
    assert two == one  # answers and the sample text among them


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_written_and_imitated_text_is_that_of_one_process(verbs: Verbs, layout: dict[str, int]) -> None:
    written = Written(by="model", documents=12, prefix=8, tokens=12, seed=3).model_dump(mode="json")
    imitated = Imitate(paragraphs=10, tokens=64, seed=3).model_dump(mode="json")
    for verb, config, inputs in (
        ("write", written, {"corpus": verbs.long}),
        ("imitate", imitated, {"tokens": verbs.long_tokens, "tokenizer": verbs.tokenizer}),
    ):
        inputs["model"] = verbs.speaker
        one, two = (verbs.did(verb, config | axes, axes, **inputs) for axes in ({}, layout))
        assert one == two, verb


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_served_model_starts_its_other_ranks_and_says_the_same(
    verbs: Verbs, layout: dict[str, int]
) -> None:
    requests = b"".join(
        json.dumps({"prompt": text[:9], "max_tokens": 9, "temperature": heat, "seed": n}).encode() + b"\n"
        for n, (text, heat) in enumerate(zip(TEXTS[:6], (0, 0.5, 1, 0, 0.5, 1), strict=True))
    )

    def said(layout: dict[str, int]) -> tuple[int, bytes, bytes]:
        run = verbs.run_file("generate", {"serve": True}, {"model": verbs.speaker})
        run = run.model_copy(update={"layout": InferenceLayout.model_validate(layout).parallel(1)})
        path = verbs.folder / "serve.json"
        path.write_text(run.text())
        environment = os.environ | {"PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "atelier.engine.generate", str(path)]
        done = subprocess.run(
            command, input=requests, capture_output=True, env=environment, timeout=120, check=False
        )
        return done.returncode, done.stdout, done.stderr

    one, two = said({}), said(layout)
    assert one[0] == 0 and one[1].count(b'"text"') == 6
    assert two == one


def served(verbs: Verbs) -> subprocess.Popen[bytes]:
    """A model that two ranks serve, once it has answered."""
    run = verbs.run_file("generate", {"serve": True}, {"model": verbs.speaker})
    run = run.model_copy(update={"layout": InferenceLayout(tensor=2).parallel(1)})
    path = verbs.folder / "killed.json"
    path.write_text(run.text())
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier.engine.generate", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": python_path()},
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'{"prompt": "sea", "max_tokens": 2}\n')
    process.stdin.flush()
    assert b"text" in process.stdout.readline()
    return process


def child_of(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize("victim", ["first", "other"])
def test_a_killed_rank_ends_the_other_one(verbs: Verbs, victim: str) -> None:
    process = served(verbs)
    other = child_of(process.pid)
    os.kill(process.pid if victim == "first" else other, signal.SIGKILL)
    assert process.wait(20)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{other}").exists() and "Z" not in Path(f"/proc/{other}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.05)


KILLED = """
import os, signal, sys
from pathlib import Path
from atelier.engine.parallel.gang import other_ranks
with other_ranks("atelier.engine.generate", sys.argv[1], 2):
    print(Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_waits_to_meet_a_killed_one_ends(verbs: Verbs) -> None:
    """No connection breaks then: the gang has none yet."""
    run = verbs.run_file("generate", {"serve": True}, {"model": verbs.speaker})
    run = run.model_copy(update={"layout": InferenceLayout(tensor=2).parallel(1)})
    path = verbs.folder / "waits.json"
    path.write_text(run.text())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], env=os.environ | {"PYTHONPATH": python_path()},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    other, deadline = int(done.stdout), time.monotonic() + 60
    try:
        while is_alive(other):
            assert time.monotonic() < deadline, "it goes on"
            time.sleep(0.05)
    finally:
        if is_alive(other):
            os.kill(other, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
