"""Models, checkpoints and scores are found by one query, are written once, and load without the store."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError
from atelier.flows.run.draw import NodeCollector
from atelier.flows.run.work import work
from atelier.infra.dag import Reference, scheduling, stop_scheduling
from atelier.infra.launch.slots import Slots
from atelier.infra.run.context import RunContext
from atelier.infra.store.store import Store
from atelier.infra.tracking.factory import TrackerSpec, open_tracker
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from atelier.tasks.register import register
from tests.infra.records import Shelf, family
from tests.infra.runs import (
    DATA,
    client,
    contents,
    follow_once,
    inputs,
    models,
    outputs,
    publish_all,
    runs,
    steps,
    tracker,
    uri,
)


def test_one_query_finds_students_corpora_checkpoints_and_scores(root: Path) -> None:
    made = family(root)
    tracked = tracker(root)
    publish_all(tracked, made)
    assert tracked.close() == []
    teacher = made.segments["teacher"].fingerprint[:36]
    students = runs(root, f"dataset.digest = '{teacher}' AND dataset.context = 'teacher'")
    assert {r.data.tags["atelier.role"] for r in students} == {"student_a", "student_b"}
    early = f"dataset.digest = '{teacher}' AND metrics.`teacher/first_step` <= 150"
    assert [r.data.tags["atelier.role"] for r in runs(root, early)] == ["student_a"]
    [student] = [r for r in students if r.data.tags["atelier.role"] == "student_a"]
    read, read_models = inputs(root, student.info.run_id)
    assert read[("training", "corpus")] == made["corpus"].fingerprint[:36]
    assert read[("training", "tokens")] == made["tokens"].fingerprint[:36]
    [checkpoint] = models(
        root, "params.role = 'student_b' AND params.step = '400' AND tags.`atelier.kind` = 'checkpoint'"
    )
    assert {m.key: (m.value, m.step) for m in checkpoint.metrics or []} == {
        "eval/loss": (pytest.approx(2.3), 400)
    }
    assert checkpoint.tags["atelier.url"].endswith("checkpoints/step-00000400")
    [scored] = models(root, "metrics.`score/bits_per_byte` < 1.8 AND tags.`atelier.kind` = 'model'")
    assert scored.tags["atelier.fingerprint"] == made["student_a"].fingerprint
    [main] = models(root, "tags.`atelier.role` = 'teacher' AND tags.`atelier.kind` = 'model'")
    assert read_models == [main.model_id]
    assert scored.model_id in outputs(root, student.info.run_id)
    assert scored.tags["mlflow.note.content"].splitlines()[0] == "student of teacher @ steps 101-400"
    assert "student_b" in main.tags["mlflow.note.content"]


def test_the_teacher_is_linked_when_its_student_was_finished_first(root: Path) -> None:
    made = family(root)
    tracked = tracker(root)
    for name in ("student_a", "teacher"):
        tracked.record(made[name])
    assert tracked.close() == []
    [student] = runs(root, "tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = 'student_a'")
    [teacher] = models(root, "tags.`atelier.role` = 'teacher' AND tags.`atelier.kind` = 'model'")
    assert inputs(root, student.info.run_id)[1] == [teacher.model_id]


def test_what_mlflow_knows_is_not_written_again_even_when_the_marks_are_lost(root: Path) -> None:
    made = family(root)
    tracked = tracker(root)
    publish_all(tracked, made)
    assert tracked.close() == []
    before = contents(root)
    assert before["models"] == 4 + 8 and before["runs"] == 4
    again = tracker(root, "run-2")
    publish_all(again, made)
    assert again.close() == []
    assert contents(root) == before
    shutil.rmtree(root / "mlflow-known")
    third = tracker(root, "run-3")
    publish_all(third, made)
    assert third.close() == []
    assert contents(root) == before


def test_a_new_database_under_an_old_store_gets_curves_and_checkpoints_too(
    root: Path, empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = family(root)
    first = tracker(root)
    publish_all(first, made)
    assert first.close() == []
    before = contents(root)
    other = tmp_path_factory.mktemp("other")
    shutil.copy(empty_database, other / "mlflow.db")
    tracked = MlflowTracker(
        uri(other), made.shelf.store, flow="demo", command="atelier", run_id="run-2", config={}
    )
    for record in made.records.values():
        tracked.record(record)
    assert tracked.close() == []
    after = contents(other)
    assert {k: after[k] for k in ("runs", "models")} == {k: before[k] for k in ("runs", "models")}
    [run] = runs(other, "tags.`atelier.role` = 'student_a' AND tags.`atelier.kind` = 'trajectory'")
    assert run.info.status == "FINISHED" and steps(other, run, "eval/loss") == [150, 200, 250, 300, 350, 400]


def test_a_registration_that_was_made_without_a_tracker_is_made_up_for_by_the_next_run_that_has_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # mlflow.set_tracking_uri of other tests sets it
    made = family(root)
    teacher = made["teacher"]
    reference = Reference(kind="model", fingerprint=teacher.fingerprint, name="teacher", node="train")
    drawing = NodeCollector()
    token = scheduling(drawing)
    register({"teacher": reference}, {})
    stop_scheduling(token)
    [node] = drawing.nodes
    about = {"flow": "demo", "command": "atelier", "run_id": "run-2", "config": {}}
    ended: list[str] = []
    for kind in ("none", "mlflow", "mlflow"):
        tracked = open_tracker(TrackerSpec(kind=kind), made.shelf.store, **about)
        context = RunContext(
            store=made.shelf.store,
            slots=Slots(1, root / "slots"),
            scratch=root,
            run_id="run-2",
            flow="demo",
            command="atelier",
            listener=lambda name, message: None,
            tracker=tracked,
        )
        states: dict[str, str] = {}
        work(node, context, states, {})
        ended += states.values()
        assert tracked.close("finished") == []
    assert ended == ["done", "reused", "reused"]
    [version] = client(root).search_model_versions("name = 'teacher'")
    assert version.tags["atelier.fingerprint"] == teacher.fingerprint


def test_a_checkpoint_that_was_removed_is_no_longer_found(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 11))
    kept, gone = shelf.checkpoint(segment, 10), shelf.checkpoint(segment, 5)
    first = tracker(root)
    follow_once(first, segment)
    assert first.close() == []
    assert len(models(root, "tags.`atelier.kind` = 'checkpoint'")) == 2
    shutil.rmtree(gone)
    second = tracker(root, "run-2")
    follow_once(second, segment)
    assert second.close() == []
    assert [m.tags["atelier.url"] for m in models(root, "tags.`atelier.kind` = 'checkpoint'")] == [kept]


def test_a_version_stands_alone_and_its_page_names_the_students(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = family(root)
    tracked = tracker(root)
    where = tracked.register(made["teacher"], aliases=["latest", "best"])
    assert where == "models:/teacher/1"
    assert tracked.register(made["student_a"], name="pupil", aliases=["best"]) == "models:/pupil/1"
    assert tracked.register(made["teacher"], aliases=["best"]) == where
    with pytest.raises(AtelierError, match="only models"):
        tracked.register(made["corpus"])
    assert "only models" in tracked.close()[0]
    mlflow = client(root)
    version = mlflow.get_model_version_by_alias("teacher", "best")
    assert version.tags["atelier.fingerprint"] == made["teacher"].fingerprint
    assert "#/models/pupil/versions/1" in (version.description or "")
    assert mlflow.get_registered_model("teacher").description == version.description
    pupil = mlflow.get_model_version("pupil", "1")
    assert (pupil.description or "").startswith("student of teacher @ steps 101-400")
    assert [v.name for v in mlflow.search_model_versions("tags.`atelier.teacher` = 'teacher'")] == ["pupil"]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    script = (
        f"import mlflow; mlflow.set_tracking_uri({uri(root)!r})\n"
        "model = mlflow.pyfunc.load_model('models:/teacher@latest')\n"
        "import json, sys; from pathlib import Path\n"
        "files = model.unwrap_python_model()\n"
        "print(json.dumps([files._model, files._code, 'torch' in sys.modules]))"
    )
    shutil.rmtree(root / "model")
    done = subprocess.run([sys.executable, "-c", script], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder, code, has_torch = json.loads(done.stdout.splitlines()[-1])
    assert not has_torch and (Path(code) / "atelier" / "engine" / "generate.py").exists()
    entry = next(e for e in made["teacher"].files if e.path.endswith("model.safetensors"))
    assert (Path(folder) / entry.path).read_bytes() == b"weights of teacher"
    assert not list(root.rglob("*.pkl")) and not list(root.rglob(".tmp-version*"))


def test_a_model_that_the_engine_here_does_not_compute_is_not_registered_with_it(root: Path) -> None:
    made = family(root)
    old = {"kind": "gpt", "num_layers": 1, "hidden": 32, "num_heads": 4, "vocab": 64, "version": 9}
    data = {key: made["teacher"].parents[key] for key in ("tokens.main", "tokenizer")}
    record = made.shelf.model("old", made.shelf.trajectory("old", data, end=9), data, step=9, config=old)
    tracked = tracker(root)
    with pytest.raises(AtelierError, match=r"registering old: old has version 9 of kind gpt"):
        tracked.register(record)
    assert "version 9" in tracked.close()[0]
    assert not client(root).search_model_versions("name = 'old'")


def test_a_run_is_listed_under_its_title(root: Path) -> None:
    assert tracker(root, title="demo tiny · run-1").close() == []
    [run] = runs(root, "tags.`atelier.kind` = 'flow'")
    assert run.info.run_name == "demo tiny · run-1" and run.data.tags["atelier.run"] == "run-1"


def test_what_a_model_was_computed_in_is_a_tag_of_its_run_its_model_and_its_version(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 11))
    record = shelf.model("model", segment, DATA, step=10, computed="fp32")
    first = tracker(root)
    follow_once(first, segment)
    first.record(record)
    first.register(record)
    assert first.close() == []
    [run] = runs(root, "tags.`atelier.computed` = 'fp32' AND tags.`atelier.kind` = 'trajectory'")
    [model] = models(root, "tags.`atelier.computed` = 'fp32' AND tags.`atelier.kind` = 'model'")
    [version] = client(root).search_model_versions("name = 'model'")
    assert run.data.tags["atelier.fingerprint"] == segment.fingerprint
    assert model.tags["atelier.fingerprint"] == record.fingerprint
    assert version.tags["atelier.computed"] == "fp32"
