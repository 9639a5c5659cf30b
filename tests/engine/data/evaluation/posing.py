"""Pose evaluation sets in a folder, and read what was written."""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from atelier.engine.config.base import Json
from atelier.engine.config.evaluation_set import KIND
from atelier.engine.config.record import FileEntry, Record, identify
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.data.evaluation.pose import pose
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input
from atelier.engine.io.evaluation_files import find
from atelier.engine.io.process import Progress
from atelier.engine.io.source_files import content_id

CHOICE: dict[str, Any] = {
    "task": "sail",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"train": "train.jsonl", "test": "test.jsonl"}},
    "output_type": "multiple_choice",
    "training_split": "train",
    "test_split": "test",
    "doc_to_text": "{{question}}\nAnswer:",
    "doc_to_target": "label",
    "doc_to_choice": "{{[first, second]}}",
}
ROW: dict[str, Any] = {
    "question": "Which sail is set first?",
    "first": "the jib",
    "second": "the main",
    "label": 1,
}
ROWS = [{**ROW, "question": f"Which sail is set at hour {number}?"} for number in range(6)]


@dataclass
class Posed:
    """What a posed set holds, and the warnings."""

    summary: dict[str, Any]
    about: dict[str, Any]
    questions: list[dict[str, Any]]
    shots: list[dict[str, Any]]
    warnings: str

    def asked(self, number: int) -> str:
        """All that a model reads before the options."""
        one = self.questions[number]
        before = "".join(self.shots[place]["text"] for place in one["shots"])
        return self.about["description"] + before + one["context"]


def write_rows(path: Path, rows: Sequence[Json]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_task(folder: Path, **changes: Any) -> Path:
    """CHOICE with other keys; None leaves one out."""
    said = {key: one for key, one in {**CHOICE, **changes}.items() if one is not None}
    path = folder / "sail.yaml"
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return path


def posed(
    word: Path, *, shots: int | None = None, seed: int = 0, most: int = 0, allow: tuple[str, ...] = ()
) -> Posed:
    """The set of a source; its data sets are beside it."""
    found = find(str(word), str(word.parent / "data"), allow, "evals", shots)
    files = {use: tuple((path, content_id(path)) for path in each) for use, each in found.files.items()}
    config = PoseConfig(
        name=found.name,
        form=found.form,
        source=found.document,
        files=files,
        shots=found.shots,
        seed=seed,
        max_questions=most,
        place=found.place,
    )
    said, output = io.StringIO(), word.parent / f"posed-{len(list(word.parent.iterdir()))}"
    summary = pose(config, ArtifactOutput(str(output)), Progress(said))
    told = [json.loads(line) for line in said.getvalue().splitlines()]
    lines = [
        [json.loads(line) for line in (output / f"{name}.jsonl").read_text().splitlines()]
        for name in ("questions", "shots")
    ]
    return Posed(
        summary=summary,
        about=json.loads((output / "set.json").read_text()),
        questions=lines[0],
        shots=lines[1],
        warnings="\n".join(line["warning"] for line in told if "warning" in line),
    )


def published(word: Path) -> ArtifactInput:
    """The set of a source as an artifact."""
    posed(word)
    folder = max(word.parent.glob("posed-*"), key=lambda path: path.stat().st_mtime_ns)
    files = [
        FileEntry(path=path.name, bytes=len(raw := path.read_bytes()), sha256=hashlib.sha256(raw).hexdigest())
        for path in sorted(folder.iterdir())
    ]
    identity: dict[str, Json] = {"files": [file.sha256 for file in files]}
    record = Record(
        kind=KIND, name=word.stem, fingerprint=identify(KIND, 1, identity, {}), version=1, identity=identity,
        parents={}, files=tuple(files),
    )  # fmt: skip
    (folder / "record.json").write_text(record.sealed().text())
    return open_input(str(folder))


def task_of_rows(folder: Path, rows: Sequence[Json], train: Sequence[Json] = (), **changes: Any) -> Path:
    """A task's YAML and its files of rows."""
    write_rows(folder / "test.jsonl", rows)
    write_rows(folder / "train.jsonl", train)
    return write_task(folder, **changes)
