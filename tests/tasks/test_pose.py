"""The task `pose`: what its identity holds, and which names its nodes have."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation_set import Pose
from atelier.engine.config.record import Record, Summary
from atelier.engine.config.run_file import RunFile
from atelier.engine.config.task.prepare import PoseConfig
from atelier.engine.io.artifact import open_input
from atelier.engine.prepare import prepare
from atelier.infra.dag import Node, Reference, scheduling, stop_scheduling
from atelier.tasks.pose import pose, pose_all
from tests.engine.data.evaluation.posing import ROWS, task_of_rows, write_rows


class Kept:
    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> None:
        self.nodes.append(node)


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    token = scheduling(kept)
    yield kept
    stop_scheduling(token)


FREE = [
    {"question": f"How deep is it at hour {n}?", "answer": "seven", "split": "test" if n else "train"}
    for n in range(3)
]


def test_nodes_are_named_by_the_set_its_shots_and_its_draw(tmp_path: Path, kept: Kept) -> None:
    task = str(task_of_rows(tmp_path, ROWS, ROWS[:2]))
    pose(task, Pose())
    pose(task, Pose(), shots=2)
    pose(task, Pose(), shots=2, draw=1)
    assert [node.name for node in kept.nodes] == ["pose.sail", "pose.sail.2", "pose.sail.2.draw1"]
    assert [PoseConfig.model_validate(node.config).seed for node in kept.nodes] == [0, 0, 1]
    assert {node.products["evaluation"].kind for node in kept.nodes} == {"evaluation"}


CHANGES: dict[str, Any] = {
    "template": {"doc_to_text": "{{question}}"},
    "delimiter": {"target_delimiter": "\n"},
    "shots": {"num_fewshot": 1},
    "metrics": {"metric_list": [{"metric": "acc"}]},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_asked_is_in_the_identity(tmp_path: Path, kept: Kept, name: str) -> None:
    first = pose(str(task_of_rows(tmp_path, ROWS, ROWS[:2])), Pose())
    assert first != pose(str(task_of_rows(tmp_path, ROWS, ROWS[:2], **CHANGES[name])), Pose())


def test_identity_holds_the_rows_and_settings_but_not_where_files_lie(tmp_path: Path, kept: Kept) -> None:
    def made(rows: list[dict[str, Any]], place: str, settings: Pose, shots: int | None = 1) -> str:
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        task = task_of_rows(folder, rows, ROWS[:2])
        if place == "b":
            (folder / "moved.jsonl").write_bytes((folder / "test.jsonl").read_bytes())
            task.write_text(task.read_text().replace("test: test.jsonl", "test: moved.jsonl"))
        return pose(str(task), settings, shots=shots).fingerprint

    first = made(ROWS, "a", Pose())
    assert first == made(ROWS, "a", Pose(draws=3, shots=(1,))) == made(ROWS, "b", Pose())
    others = [
        made(ROWS[1:], "a", Pose()),
        made(ROWS, "a", Pose(seed=1)),
        made(ROWS, "a", Pose(max_questions=2)),
        made(ROWS, "a", Pose(), shots=2),
    ]
    assert len({first, *others}) == 5
    assert made(ROWS, "a", Pose(), shots=0) == made(ROWS, "a", Pose(seed=1), shots=0)  # nothing is drawn


def test_all_sets_have_names_of_their_own_or_are_refused(tmp_path: Path, kept: Kept) -> None:
    rows = str(write_rows(tmp_path / "deep.jsonl", FREE))
    made = pose_all([rows], Pose(shots=(0, 1), draws=2))
    assert [*made] == ["deep.0", "deep.1", "deep.1.draw1"] and len(kept.nodes) == 3
    (tmp_path / "other").mkdir()
    again = str(write_rows(tmp_path / "other/deep.jsonl", FREE[1:]))
    with pytest.raises(
        ConfigError, match=r"evals: .*other/deep.jsonl and .*deep.jsonl are both called deep; leave"
    ):
        pose_all([rows, again], Pose())


def test_draws_that_would_be_equal_are_refused(tmp_path: Path, kept: Kept) -> None:
    task = str(task_of_rows(tmp_path, ROWS, ROWS[:2], fewshot_config={"sampler": "first_n"}))
    assert pose_all([task], Pose(shots=(1,)))
    with pytest.raises(ConfigError, match=r"pose.draws: is 2, but .* takes the first examples of its pool"):
        pose_all([task], Pose(shots=(1,), draws=2))


def test_a_probe_is_its_settings_and_the_rows_that_it_names(tmp_path: Path, kept: Kept) -> None:
    def made(row: dict[str, Any], **settings: Any) -> str:
        write_rows(tmp_path / "rows.jsonl", [row])
        path = tmp_path / "mine.yaml"
        path.write_text(json.dumps({"probe": {"kind": "formats", "of": "rows.jsonl", **settings}}))
        return pose(str(path), Pose()).fingerprint

    row = {"question": "Which sail?", "options": ["jib", "main"], "answer": 1}
    first = made(row)
    assert first == made(row)
    others = [
        made(row, formats=["bare", "qa"]),
        made({**row, "answer": 0}),
        made({**row, "question": "Why?"}),
    ]
    assert len({first, *others}) == 4


def test_a_declared_node_makes_the_set(tmp_path: Path, kept: Kept) -> None:
    reference = pose(str(write_rows(tmp_path / "deep.jsonl", FREE)), Pose(), shots=1)
    [node] = kept.nodes
    target = tmp_path / "set"
    run = RunFile(
        schema=1, task=node.task, version=1, config=node.config, inputs={},
        outputs={"evaluation": str(target)}, scratch=str(tmp_path / "scratch"),
    )  # fmt: skip
    with (tmp_path / "said").open("w") as said:
        summary = prepare(run, said)
    product = node.products["evaluation"]
    record = Record(
        kind=product.kind, name=product.name, fingerprint=reference.fingerprint, version=product.version,
        identity=product.identity, parents={}, files=(), summary=cast(Summary, summary),
    )  # fmt: skip
    (target / "record.json").write_text(record.sealed().text())
    assert open_input(str(target)).record.summary.get("questions") == summary["questions"] == 2
    assert {path.name for path in target.iterdir()} >= {"set.json", "questions.jsonl", "shots.jsonl"}


def test_a_changed_file_is_found_when_it_is_read(tmp_path: Path, kept: Kept) -> None:
    file = write_rows(tmp_path / "deep.jsonl", FREE)
    pose(str(file), Pose())
    write_rows(file, FREE[1:])
    [node] = kept.nodes
    run = RunFile(
        schema=1, task="pose", version=1, config=node.config, inputs={},
        outputs={"evaluation": str(tmp_path / "x")}, scratch=str(tmp_path),
    )  # fmt: skip
    with (
        pytest.raises(Exception, match=r"changed since the run was planned"),
        (tmp_path / "said").open("w") as said,
    ):
        prepare(run, said)
