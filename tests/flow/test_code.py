"""Code versions are not mixed in one training without --accept-code: in a copy of the project with an edited
model.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import copied, python_path

WORDS = (
    "experiment=tiny",
    "train.precision=fp32",
    "optim.schedule.kind=constant",
    "model.num_layers=1",
)
GPT, LAYERS = "engine/model/gpt.py", "engine/model/transformer.py"


@dataclass
class Copy:
    """A copy of the project with a store of its own."""

    folder: Path
    store: Path

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r}"
        path.write_text(text.replace(old, new, 1))

    def append(self, file: str, line: str) -> None:
        with (self.folder / file).open("a") as text:
            text.write(f"\n{line}\n")

    def run(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=self.folder, capture_output=True, text=True, timeout=300,
            env=os.environ | {"PYTHONPATH": python_path(self.folder), "ATELIER_ROOT": str(self.store)},
        )  # fmt: skip

    def train(self, steps: int, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("tests.flow.bare", "pretrain", *WORDS, f"train.steps={steps}", *words)

    def plan(self, steps: int, *words: str) -> tuple[dict[str, Any], str]:
        [found] = self.plans([steps], *words)
        return found

    def plans(self, lengths: list[int], *words: str) -> list[tuple[dict[str, Any], str]]:
        """Plans of trainings of these lengths, by one process; what each is refused for."""
        orders = [["plan", "pretrain", *WORDS, f"train.steps={steps}", "--json", *words] for steps in lengths]
        done = self.run("tests.flow.many", *map(json.dumps, orders))
        assert done.returncode == 0, done.stderr
        result = []
        for code, text in json.loads(done.stdout):
            document = json.loads(text)
            assert code == (2 if document["refused"] else 0), text
            result.append((document, "; ".join(document["refused"])))
        return result

    def model(self, steps: int) -> dict[str, Any]:
        """The record of the model with so many steps."""
        found = [json.loads(path.read_bytes()) for path in (self.store / "model").glob("*/record.json")]
        return next(record for record in found if record["summary"].get("step") == steps)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The project, and a training of three steps by it."""
    base = tmp_path_factory.mktemp("code")
    copied(base / "project")
    (base / "project" / "tests" / "flow").mkdir(parents=True)
    (base / "project" / "tests" / "__init__.py").touch()
    (base / "project" / "tests" / "flow" / "__init__.py").touch()
    for name in ("bare.py", "many.py"):
        shutil.copy(Path(__file__).with_name(name), base / "project" / "tests" / "flow")
    found = Copy(base / "project", base / "store")
    done = found.train(3)
    assert done.returncode == 0, done.stderr
    return found


def test_edits_that_mean_nothing_change_nothing(copy: Copy) -> None:
    copy.edit(GPT, '"""', '"""Other words. ')  # a docstring
    copy.append("engine/parallel/grid.py", "SIZE = 1")  # moves no meaning
    copy.append("engine/config/error.py", "SIZE = 1")
    copy.append("engine/model/ernie.py", "SIZE = 1")  # a kind that it does not use
    document, refused = copy.plan(4)
    assert not refused and not document["notes"]
    assert {row["name"]: row["from_step"] for row in document["tasks"]}["train"] == 3


def test_other_code_is_named_refused_accepted_or_begun_again(copy: Copy) -> None:
    first = copy.model(3)
    copy.edit(LAYERS, "def run_blocks", "SCALE = 2\n\n\ndef run_blocks")
    copy.edit(LAYERS, "        x_BTD = x_BTD + ", "        x_BTD = x_BTD + SCALE * ")
    (document, _), (_, refused) = copy.plans([3, 4])
    row = next(row for row in document["tasks"] if row["name"] == "train")
    assert row["state"] == "reuse" and LAYERS in row["reasons"][0]["code"]
    assert any(LAYERS in note and "train" in note for note in document["notes"])
    assert f"step 3 with other code (changed since: {LAYERS} (" in refused and "--accept-code" in refused
    asked = copy.run("atelier", "pretrain", *WORDS, "train.steps=4")
    assert asked.returncode == 2 and "Traceback" not in asked.stderr and refused in asked.stderr

    accepted = copy.train(4, "--accept-code")
    assert accepted.returncode == 0, accepted.stderr
    mixed = copy.model(4)["summary"]["codes"]
    assert len(mixed) == 2 and "codes" not in first["summary"]
    assert not copy.plan(5)[1]  # what was accepted is the code that it stands at now

    copy.edit(LAYERS, "SCALE = 2", "SCALE = 3")
    assert "step 4 with other code" in copy.plan(5)[1]
    document, refused = copy.plan(5, "--fresh", "train")
    assert not refused and {row["name"]: row["from_step"] for row in document["tasks"]}["train"] == 0
    again = copy.train(5, "--fresh", "train")
    assert again.returncode == 0, again.stderr
    assert "codes" not in copy.model(5)["summary"] and copy.model(3) == first


def test_a_task_that_is_not_there_cannot_begin_again(copy: Copy) -> None:
    asked = copy.run("atelier", "pretrain", *WORDS, "train.steps=9", "--fresh", "trian")
    assert asked.returncode == 2 and "there is no training task trian; did you mean train?" in asked.stderr
