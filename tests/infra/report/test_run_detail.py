"""A past run is shown with its models, their scores and its report."""

from pathlib import Path

from atelier.infra.report.run_detail import run_detail
from atelier.infra.store.run_manifest import Row, RunManifest
from atelier.infra.store.store import Store
from tests.infra.records import family


def test_a_runs_models_have_the_scores_of_its_report(tmp_path: Path):
    made = family(tmp_path)
    student = made["student_a"]
    table = [{"fingerprint": student.fingerprint, "kind": "student", "loss": 4.2, "delta": -0.4}]
    report = made.shelf.publish("report", "distill", files={"report.html": b"<h1>"}, summary={"table": table})
    manifest = RunManifest(
        id="run-1",
        states={"train": "done"},
        links={"mlflow.flow": "http://127.0.0.1:5000/#/x", "flow_run": "an id"},
        tasks=(
            Row(fingerprint=student.fingerprint, kind="model", model="student_a"),
            Row(fingerprint="f" * 64, kind="model", model="removed"),
            Row(fingerprint=report.fingerprint, kind="report"),
        ),
    )
    detail = run_detail(Store(str(tmp_path)), manifest)
    [model] = detail["models"]
    assert (model["name"], model["loss"], model["loss_vs_control"]) == ("student_a", 4.2, -0.4)
    assert model["bits_per_byte"] is None
    assert detail["report"].endswith("/report.html") and Path(detail["report"]).exists()
    assert detail["links"] == {"mlflow.flow": "http://127.0.0.1:5000/#/x"} and detail["tasks"] == {
        "train": "done"
    }
