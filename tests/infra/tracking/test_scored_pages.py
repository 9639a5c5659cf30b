"""Scores of a report are metrics of runs and come first on a model's page; views choose columns
and charts.
"""

import json
from pathlib import Path

import pytest

from atelier.engine.config.record import Record
from atelier.infra.store.store import Store
from atelier.infra.tracking.direct import PlottedPoint, show_sweep
from atelier.infra.tracking.views import COLUMNS, TAG
from tests.infra.records import Family, family
from tests.infra.runs import client, models, publish_all, runs, tracker, uri

NOTE = "mlflow.note.content"


def report_of(made: Family) -> Record:
    """A report in which the student is 0.4 below its control."""
    names = ("student_a", "control_a")
    table = [
        {"name": name, "fingerprint": made[name].fingerprint, "kind": "student", "loss": loss} | more
        for name, loss, more in (
            ("student_a", 4.2, {"bits_per_byte": 1.6, "delta": -0.4}),
            ("control_a", 4.6, {"bits_per_byte": 1.8}),
        )
    ]
    parents = {f"model.{name}": made[name].fingerprint for name in names}
    summary = {"rows": 2, "table": table}
    controls = {"student_a": "control_a"}
    return made.shelf.publish("report", "distill", parents, summary=summary, controls=controls)


@pytest.fixture
def reported(root: Path) -> Path:
    """A store whose models and report MLflow shows."""
    made = family(root)
    report = report_of(made)
    tracked = tracker(root)
    publish_all(tracked, made)
    tracked.report(report, "# distill", [])
    assert tracked.close() == []
    return root


def test_a_students_page_begins_with_its_scores_its_control_and_its_teacher(reported: Path):
    [student] = models(reported, "tags.`atelier.kind` = 'model' AND tags.`atelier.role` = 'student_a'")
    rows = [line for line in student.tags[NOTE].splitlines() if line.startswith("| ")]
    words = [row.split("&nbsp;")[0].strip("| ") for row in rows]
    assert words[1:5] == ["bits/byte", "loss (documents)", "loss vs control", "teacher @ steps 101-400"], rows
    assert "-0.400 beside [control_a](/#/models" in rows[3] or "-0.400 beside [control_a](/#/exp" in rows[3]


def test_scores_are_metrics_of_the_flows_run_and_of_the_models_run(reported: Path):
    [flow] = runs(reported, "tags.`atelier.kind` = 'flow'")
    numbers = {key: value for key, value in flow.data.metrics.items() if "student_a" in key}
    assert numbers == {
        "student_a/loss": 4.2,
        "student_a/bits_per_byte": 1.6,
        "student_a/loss_vs_control": -0.4,
    }
    [run] = runs(reported, "tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = 'student_a'")
    assert run.data.metrics["score/loss_vs_control"] == -0.4


def test_an_experiment_has_the_view_of_all_models(root: Path):
    tracked = tracker(root)
    publish_all(tracked, family(root))
    assert tracked.close() == []
    experiment = client(root).get_experiment_by_name("demo")
    view = json.loads(experiment.tags[f"{TAG}atelier"])
    assert view["selectedColumns"] == list(COLUMNS) and view["orderByAsc"] is True
    assert client(root).search_runs([experiment.experiment_id], view["searchFilter"])


def test_each_point_of_a_sweep_has_its_value_beside_its_swept_keys(root: Path):
    for run_id, rate in (("run-1", "0.01"), ("run-2", "0.03")):
        tracked = tracker(root, run_id, sweep="abcdefabcdef")
        tracked.close()
        [flow] = runs(root, f"tags.`atelier.run` = '{run_id}' AND tags.`atelier.kind` = 'flow'")
        client(root).set_tag(flow.info.run_id, "mlflow.source.name", f"atelier demo optim.lr={rate}")
    points = [
        PlottedPoint(["optim.lr=0.01"], {"optim.lr": "0.01"}, 4.5),
        PlottedPoint(["optim.lr=0.03"], {"optim.lr": "0.03"}, 4.2),
    ]
    for _ in range(2):  # shown again after the next point
        show_sweep(
            uri(root),
            Store(str(root)),
            flow="demo",
            sweep="abcdefabcdef",
            markdown="# sweep",
            paths=[],
            trajectories=[],
            points=points,
            keys=["optim.lr"],
            metric="model.eval_loss",
            is_lower_better=True,
            numbers={},
            tags={},
            is_failed=False,
        )
    found = {
        run.data.params["optim.lr"]: run.data.metrics["model.eval_loss"]
        for run in runs(root, "tags.`atelier.kind` = 'flow'")
    }
    assert found == {"0.01": 4.5, "0.03": 4.2}
    view = json.loads(client(root).get_experiment_by_name("demo").tags[f"{TAG}abcdefabcdef"])
    [chart] = view["compareRunCharts"]
    assert (chart["xaxis"]["key"], chart["yaxis"]["key"]) == ("optim.lr", "model.eval_loss")
