"""Links between pages: from every page about a model to its teacher, students, data, run and report, and
back.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from atelier.engine.config.trajectory import Segment
from atelier.infra.dag import Node, Product
from atelier.infra.store.lease import Holder, LeaseLog
from atelier.infra.store.store import Store
from atelier.infra.tracking import process_stats
from atelier.infra.tracking.curve import points
from atelier.infra.tracking.factory import TrackerSpec, open_tracker
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from atelier.infra.tracking.process_stats import ProcessStats
from tests.infra.records import Family, Shelf, family
from tests.infra.runs import DATA, client, follow_once, models, publish_all, runs, steps, tracker, uri

NOTE = "mlflow.note.content"


def publish_and_register(root: Path, made: Family, *names: str) -> None:
    tracked = tracker(root)
    publish_all(tracked, made)
    for name in names:
        tracked.register(made[name])
    assert tracked.close() == []


def page(root: Path, name: str) -> str:
    return client(root).get_registered_model(name).description or ""


def links(text: str) -> dict[str, str]:
    return dict(re.findall(r"(?<!!)\[([^\]]*)\]\(([^)]*)\)", text))


def check(root: Path, address: str) -> None:
    """Raise when the page that `address` leads to does not exist."""
    assert address.startswith("/#/") and "?workflowType=machine_learning" in address
    place = address.removeprefix("/#/").split("?")[0].split("/")
    if place[0] == "models":
        client(root).get_model_version(place[1], place[3])
    elif place[2] == "models":
        client(root).get_logged_model(place[3])
    elif len(place) > 3:
        assert client(root).get_run(place[3]).info.experiment_id == place[1]


def test_teacher_and_student_link_each_other_on_every_page_and_all_links_lead_somewhere(root: Path) -> None:
    publish_and_register(root, family(root), "teacher", "student_a")
    for name, first, other in (
        ("student_a", "student of teacher @ steps 101-400", "teacher"),
        ("teacher", "teaches student_a, student_b", "student_a"),
    ):
        text = page(root, name)
        [run] = runs(root, f"tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = '{name}'")
        [model] = models(root, f"tags.`atelier.kind` = 'model' AND tags.`atelier.role` = '{name}'")
        same = [run.data.tags[NOTE], model.tags[NOTE], client(root).get_model_version(name, "1").description]
        assert same == [text] * 3
        assert text.splitlines()[0] == first
        assert links(text)[other] == f"/#/models/{other}/versions/1?workflowType=machine_learning"
        for address in links(text).values():
            check(root, address)
        assert f"(/get-artifact?path=lineage%2Flineage.svg&run_uuid={run.info.run_id})" in text
        assert model.tags["mlflow.modelVersions"] == f'[{{"name": "{name}", "version": "1"}}]'


def test_a_teacher_s_page_and_picture_gain_a_student_that_comes_later(root: Path) -> None:
    made = family(root)
    publish_and_register(root, made, "teacher")
    teaching = {"teacher": made.segments["teacher"].fingerprint}
    segment = made.shelf.trajectory("student_c", teaching, start=300)
    late = made.shelf.model(
        "student_c", segment, teaching, step=400, run="run-2", teacher="teacher", teacher_steps=[301, 400]
    )
    tracked = tracker(root, "run-2")
    tracked.record(late)
    assert tracked.close() == []
    [run] = runs(root, "tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = 'teacher'")
    assert page(root, "teacher").startswith("teaches student_a, student_b, student_c\n")
    check(root, links(page(root, "teacher"))["student_c"])
    picture = Path(client(root).download_artifacts(run.info.run_id, "lineage/lineage.svg")).read_text()
    assert late.fingerprint[:8] in picture and 'role="img"' in picture


def test_a_corpus_has_a_page_on_the_run_that_made_it(root: Path) -> None:
    made = family(root)
    tracked = tracker(root)
    task = tracked.start_task("curate", "curate")
    tracked.record(made["corpus"], task)
    tracked.record(made["teacher"])
    tracked.register(made["teacher"])
    assert tracked.close() == []
    address = links(page(root, "teacher"))["stdlib"]
    assert f"/runs/{task.run}?" in address
    about = client(root).get_run(task.run).data.tags[NOTE]
    assert about.startswith("corpus stdlib\n") and "10,100,000" in about


def test_the_report_is_linked_from_the_models_in_it(root: Path) -> None:
    made = family(root)
    parents = {"model.teacher": made["teacher"].fingerprint}
    record = made.shelf.publish("report", "titan", parents)
    (root / "report.html").write_text("<h1>titan</h1>")
    tracked = tracker(root)
    publish_all(tracked, made)
    tracked.register(made["teacher"])
    tracked.report(record, "# titan", [root / "report.html"])
    flow = tracked.mlflow_run
    assert tracked.close() == []
    address = links(page(root, "teacher"))["titan"]
    assert f"/runs/{flow}/artifacts/report/report.html?" in address
    assert [f.path for f in client(root).list_artifacts(flow, "report")] == ["report/report.html"]


def test_the_link_to_compare_finds_each_role_s_whole_curve_once(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    trunk = shelf.trajectory("model", {}, end=20)
    branch = shelf.trajectory("model", {"trunk": trunk.fingerprint}, start=20, end=30, trunk_step=20)
    shelf.metrics(trunk, range(1, 21))
    shelf.metrics(branch, range(21, 31))
    model = shelf.model("model", branch, {}, step=30)
    tracked = tracker(root)
    task = tracked.start_task("train", "train")
    follow_once(tracked, trunk, branch)
    tracked.record(model, task)
    tracked.register(model)
    assert tracked.close() == []
    address = links(page(root, "model"))["curves of this run"]
    [query] = parse_qs(address.split("?")[1])["searchFilter"]
    assert [run.info.run_name for run in runs(root, query)] == ["model"]
    assert "orderByKey=tags." in address  # by date MLflow draws a closed tree


def test_two_roles_have_the_same_names_of_params(root: Path) -> None:
    store = Store(str(root))
    about = {"flow": "demo", "command": "atelier", "run_id": "run-1", "config": {}}
    flow = open_tracker(TrackerSpec(kind="mlflow", uri=uri(root)), store, **about)
    shelf, products, parts = Shelf(store), {}, {}
    for role, hidden in (("teacher", 64), ("student", 32)):
        identity = {"model": {"hidden": hidden}, "optim": {"lr": 0.01}, "seed_name": role}
        segment = shelf.trajectory(role, {}, end=10, **identity)
        shelf.metrics(segment, range(1, 11))
        parts[role] = [Segment(start=0, end=10, identity=identity, parents={})]
        products[role] = Product(
            kind="model",
            name=role,
            version=1,
            identity={},
            parents={},
            detail=identity,
            origin={key: f"roles.{role}.{key}" for key in identity},
        )
    roles = {"teacher": {}, "student": {"teacher": "teacher"}}
    node = Node(name="train", task="train", products=products, config={"roles": roles})
    flow.start_task(node, False)
    with flow.following(node, parts):
        pass
    assert flow.close("finished") == []
    found = {r.data.tags["atelier.role"]: r for r in runs(root, "tags.`atelier.whole` = 'true'")}
    params = {role: run.data.params for role, run in found.items()}
    assert params["student"]["model.hidden"] == "32" and params["student"]["teacher"] == "teacher"
    assert params["student"].keys() - {"teacher"} == params["teacher"].keys()
    assert params["teacher"]["train.steps"] == "10"
    assert found["teacher"].data.metrics.keys() == found["student"].data.metrics.keys()


def test_models_and_checkpoints_carry_the_curve_s_own_points(root: Path) -> None:
    publish_and_register(root, family(root))
    [run] = runs(root, "tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = 'teacher'")
    for key in ("loss", "eval/loss", "tokens"):
        assert len(steps(root, run, key)) == len(set(steps(root, run, key)))
    [model] = models(root, "tags.`atelier.role` = 'teacher' AND tags.`atelier.kind` = 'model'")
    measured = {m.key: m.value for m in model.metrics or []}
    assert measured.keys() >= {"loss", "eval/loss", "tokens"} and measured["tokens"] == 400 * 64
    assert measured["eval/loss"] == pytest.approx(run.data.metrics["eval/loss"])
    assert {key for key in run.data.metrics if key.startswith(("final/", "checkpoint/"))} == set()


def test_the_gauge_sees_the_gang_s_processes_and_ends_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_stats, "EVERY_S", 0.0)
    child = "import time; end = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    guard = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"],
        start_new_session=True,
    )
    try:
        LeaseLog(str(tmp_path)).append(1, "take", Holder.of(guard.pid))
        measuring, used = ProcessStats([str(tmp_path)]), {}
        deadline = time.monotonic() + 20
        while used.get("cpu_cores", 0.0) < 0.05 and time.monotonic() < deadline:
            time.sleep(0.1)
            used = measuring.read()
        assert used["cpu_cores"] >= 0.05 and 0.001 < used["resident_gb"] < 1.0
    finally:
        os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()
    assert measuring.read() == {} and ProcessStats([str(tmp_path / "nobody")]).read() == {}


SMI = """#!/bin/sh
[ "$1" = "--query-gpu=index,uuid,utilization.gpu,memory.used" ] || exit 1
cat <<END
0, GPU-5d1f7c1e-55f5-4a1c-b3a3-000000000000, 100, 81000
1, GPU-5d1f7c1e-55f5-4a1c-b3a3-111111111111, 90, 1000
2, GPU-5d1f7c1e-55f5-4a1c-b3a3-222222222222, 70, 3000
3, GPU-5d1f7c1e-55f5-4a1c-b3a3-333333333333, [N/A], 500
END
"""


def test_the_gauge_sees_the_gang_s_gpus_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi here is a script that prints what the real one prints."""
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(process_stats, "EVERY_S", 0.0)
    uuid = "GPU-5d1f7c1e-55f5-4a1c-b3a3-222222222222"
    for devices, expected in (
        (f"1,{uuid}", {"gpu_percent": 80.0, "gpu_memory_gb": 4000 * 2**20 / 1e9}),
        ("3", {"gpu_memory_gb": 500 * 2**20 / 1e9}),
        ("", {}),
    ):
        guard = subprocess.Popen(["sleep", "60"], env=os.environ | {"CUDA_VISIBLE_DEVICES": devices})
        try:
            root = tmp_path / f"lease-{len(devices)}"
            LeaseLog(str(root)).append(1, "take", Holder.of(guard.pid))
            measuring = ProcessStats([str(root)])
            deadline = time.monotonic() + 20
            while not (used := measuring.read()) and time.monotonic() < deadline:
                time.sleep(0.05)
            found = {key: value for key, value in used.items() if key.startswith("gpu")}
            assert found == pytest.approx(expected) and "cpu_cores" in used
        finally:
            guard.kill()
            guard.wait()
    assert points([{"step": 1, "values": {}, "timing": {"gpu_percent": 80.0}}], set(), start=0, now=0.0) == [
        ("system/gpu_percent", 80.0, 1, 0.0)
    ]


def test_a_page_names_few_of_many_students_and_counts_the_rest(root: Path) -> None:
    made = family(root)
    teaching = {"teacher": made.segments["teacher"].fingerprint}
    for number in range(10):
        segment = made.shelf.trajectory(f"pupil_{number}", teaching, start=number)
        made.shelf.model(f"pupil_{number}", segment, teaching, step=9, teacher_steps=[1, 9])
    tracked = MlflowTracker(
        uri(root), made.shelf.store, flow="demo", command="atelier", run_id="run-1", config={}
    )
    tracked.record(made["teacher"])
    assert tracked.close() == []
    [model] = models(root, "tags.`atelier.role` = 'teacher' AND tags.`atelier.kind` = 'model'")
    first = model.tags[NOTE].splitlines()[0]
    assert first.startswith("teaches student_a, student_b, pupil_0") and first.endswith("and 6 more")
    [run] = runs(root, "tags.`atelier.kind` = 'trajectory' AND tags.`atelier.role` = 'teacher'")
    picture = Path(client(root).download_artifacts(run.info.run_id, "lineage/lineage.svg")).read_text()
    assert "and 7 more" in picture  # of those that learned nothing but from the teacher


def test_the_traces_of_a_profiled_training_are_files_of_its_run(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    trace = Path(segment.url) / "profile" / "steps-4-7-rank0.json.gz"
    trace.parent.mkdir()
    trace.write_bytes(b"a trace")
    tracked = tracker(root)
    follow_once(tracked, segment)
    assert tracked.close() == []
    [run] = runs(root, "tags.`atelier.kind` = 'trajectory'")
    [file] = client(root).list_artifacts(run.info.run_id, "profile")
    assert file.path == f"profile/{trace.name}"
    assert Path(client(root).download_artifacts(run.info.run_id, file.path)).read_bytes() == b"a trace"
