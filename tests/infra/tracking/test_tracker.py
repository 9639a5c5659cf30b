"""MLflow shows each curve once, finds students by their teacher, and never delays a run."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import Followed
from atelier.infra.tracking.backend import Backend
from atelier.infra.tracking.curve import curves_of, is_kept
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from atelier.infra.tracking.retry_worker import Worker
from tests.checkout import TOP
from tests.infra.records import Shelf
from tests.infra.runs import DATA, client, follow_once, runs, steps, tracker, uri


def test_a_curve_is_dense_at_first_and_thin_later() -> None:
    counts = [sum(map(is_kept, range(1, n + 1))) for n in (200, 3200, 51_200, 409_600)]
    assert counts == [200, 600, 1000, 1300]


def test_a_resumed_training_goes_on_with_its_own_run_and_no_step_comes_twice(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    first = tracker(root)
    follow_once(first, segment, status="KILLED")
    assert first.close("KILLED") == []
    assert [r.info.status for r in runs(root, "tags.`atelier.kind` = 'trajectory'")] == ["KILLED"]
    shelf.metrics(segment, range(21, 61), attempt=2)
    second = tracker(root, "run-2")
    follow_once(second, segment)
    assert second.close() == []
    [run] = runs(root, "tags.`atelier.kind` = 'trajectory'")
    assert run.info.status == "FINISHED"
    assert run.data.tags["atelier.flow_runs"] == "run-1,run-2"
    assert steps(root, run, "loss") == list(range(1, 61))
    assert steps(root, run, "eval/loss") == [50]
    assert "data_wait_s" not in run.data.metrics and "system/tokens_per_s" in run.data.metrics
    [task] = [
        r
        for r in runs(root, "tags.`atelier.kind` = 'task'")
        if r.info.run_id == run.data.tags["mlflow.parentRunId"]
    ]
    [flow] = [
        r
        for r in runs(root, "tags.`atelier.kind` = 'flow'")
        if r.info.run_id == task.data.tags["mlflow.parentRunId"]
    ]
    assert flow.info.run_name == "run-2" and flow.data.params == {"train.steps": "9"}


def test_a_curve_grows_while_the_training_runs(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 4))
    tracked = tracker(root)
    following = tracked.follow(curves_of([Followed(segments=(segment,), role="model")]))
    deadline = time.monotonic() + 30
    while (
        not (found := runs(root, "tags.`atelier.kind` = 'trajectory' AND metrics.loss > 0"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert steps(root, found[0], "loss") == [1, 2, 3] and found[0].info.status == "RUNNING"
    shelf.metrics(segment, range(4, 7), number=2)
    following.stop()
    assert tracked.close() == []
    assert steps(root, found[0], "loss") == [1, 2, 3, 4, 5, 6]


def test_a_decay_branch_has_a_run_of_its_own_that_begins_with_its_trunk(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    trunk = shelf.trajectory("model", DATA, end=20)
    branch = shelf.trajectory("model", DATA | {"trunk": trunk.fingerprint}, start=20, end=30, trunk_step=20)
    shelf.metrics(trunk, range(1, 41))  # somebody trained the trunk further
    shelf.metrics(branch, range(20, 31), offset=1.0)  # with a look at the branch point itself
    tracked = tracker(root)
    follow_once(tracked, trunk, branch)
    assert tracked.close() == []
    by_trunk = {
        run.data.tags.get("atelier.trunk", ""): run
        for run in runs(root, "tags.`atelier.kind` = 'trajectory'")
    }
    assert set(by_trunk) == {"", trunk.fingerprint}
    assert steps(root, by_trunk[""], "loss") == list(range(1, 41))
    assert steps(root, by_trunk[trunk.fingerprint], "loss") == list(range(1, 31))
    history = client(root).get_metric_history(by_trunk[trunk.fingerprint].info.run_id, "loss")
    assert [m.value for m in history if m.step in (20, 21)] == [4.0 - 20 / 200, 4.0 - 21 / 200 + 1.0]


def test_a_request_that_was_answered_too_late_is_not_written_twice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31), stamped=False)
    sending, failures = Backend.points, iter([ConnectionError("reset by peer")])

    def cut_off(self: Backend, *arguments: Any) -> None:
        sending(self, *arguments)
        for failure in failures:
            raise failure

    monkeypatch.setattr(Backend, "points", cut_off)
    tracked = tracker(root)
    follow_once(tracked, segment)
    assert tracked.close() == []
    assert next(failures, None) is None
    [run] = runs(root, "tags.`atelier.kind` = 'trajectory'")
    assert steps(root, run, "loss") == list(range(1, 31))


def test_a_tracker_without_a_server_costs_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    shelf = Shelf(Store(str(tmp_path)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 3))
    began = time.monotonic()
    tracked = MlflowTracker(
        "http://127.0.0.1:9", shelf.store, flow="demo", command="atelier", run_id="run-1", config={}
    )
    follow_once(tracked, segment)
    assert time.monotonic() - began < 0.5
    problems = tracked.close(timeout_s=1.0)
    assert time.monotonic() - began < 3.0
    assert "the curve of model" in problems[-1]


def test_a_store_that_comes_back_gets_everything(root: Path, empty_database: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    place = root / "away"
    place.write_text("a file where the database's folder should be")
    tracked = MlflowTracker(
        uri(place), shelf.store, flow="demo", command="atelier", run_id="run-1", config={}
    )
    follow_once(tracked, segment)
    deadline = time.monotonic() + 30
    while not tracked.trouble and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "File exists" in tracked.trouble
    place.unlink()
    place.mkdir()
    shutil.copy(empty_database, place / "mlflow.db")
    assert tracked.close() == []
    [run] = runs(place, "tags.`atelier.kind` = 'trajectory'")
    assert steps(place, run, "loss") == list(range(1, 31)) and run.info.status == "FINISHED"


class Flaky:
    """A backend that answers, but refuses one kind of call."""

    def ping(self) -> None:
        """It is there."""

    def is_lasting(self, error: BaseException) -> bool:
        return isinstance(error, ValueError)


def test_a_call_that_can_never_succeed_is_given_up_and_told() -> None:
    worker = Worker(Flaky)
    done: list[int] = []

    def refuse(backend: Any) -> None:
        raise ValueError("no such thing")

    worker.put("a", refuse)
    worker.put("b", lambda backend: done.append(1))
    assert worker.close(5.0) == ["a: no such thing"]
    assert done == [1]


def test_a_flow_run_whose_process_died_is_shown_as_killed(root: Path) -> None:
    first = tracker(root)
    task = first.start_task("train", "train")
    deadline = time.monotonic() + 30
    while not task.run and time.monotonic() < deadline:
        time.sleep(0.05)
    dead = Holder.me().__dict__ | {"started": "1"}
    client(root).set_tag(first.mlflow_run, "atelier.holder", json.dumps(dead))
    second = tracker(root, "run-2")
    assert second.mlflow_run
    killed = {run.info.run_id for run in runs(root, "attributes.status = 'KILLED'")}
    assert killed == {first.mlflow_run, task.run}
    second.close()
    first.close()


def test_the_same_run_tried_again_goes_on_with_the_same_mlflow_run(root: Path) -> None:
    for status in ("FAILED", "FINISHED"):
        tracked = tracker(root, sweep="sweep-1")
        task = tracked.start_task("curate", "curate")
        tracked.end_task(task, status)
        assert tracked.close(status) == []
    found = {run.data.tags["atelier.kind"]: run for run in runs(root)}
    assert len(runs(root)) == 3
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    assert found["flow"].data.tags["mlflow.parentRunId"] == found["sweep"].info.run_id


def test_the_report_is_on_the_flow_s_page_with_its_picture(root: Path) -> None:
    (root / "loss.png").write_bytes(b"png")
    tracked = tracker(root)
    tracked.report(None, "# distill\n\n![loss](loss.png)", [root / "loss.png"])
    assert tracked.close() == []
    [flow] = runs(root, "tags.`atelier.kind` = 'flow'")
    assert [f.path for f in client(root).list_artifacts(flow.info.run_id, "report")] == ["report/loss.png"]
    assert (
        f"get-artifact?path=report%2Floss.png&run_uuid={flow.info.run_id}"
        in flow.data.tags["mlflow.note.content"]
    )


def test_many_trackers_at_once_agree_on_sweep_and_trajectory(root: Path) -> None:
    shelf = Shelf(Store(str(root)))
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 11))
    tracked = [tracker(root, f"run-{n}", sweep="s") for n in range(3)]
    threads = [threading.Thread(target=follow_once, args=(one, segment)) for one in tracked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.close() for one in tracked] == [[], [], []]
    sweeps = {run.data.tags["mlflow.parentRunId"] for run in runs(root, "tags.`atelier.kind` = 'flow'")}
    assert len(sweeps) == 1
    assert len(runs(root, "tags.`atelier.kind` = 'trajectory'")) == 1


def test_who_did_not_see_the_other_s_run_leaves_its_own(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(self: Backend, experiments: Sequence[str], tags: Mapping[str, str]) -> Run | None:
        return None if tags.get("atelier.kind") == "sweep" else seeing(self, experiments, tags)

    seeing = Backend.find_run
    monkeypatch.setattr(Backend, "find_run", blind)
    for number in range(2):
        assert tracker(root, f"run-{number}", sweep="s").close() == []
    [sweep] = runs(root, "tags.`atelier.kind` = 'sweep'")
    flows = runs(root, "tags.`atelier.kind` = 'flow'")
    assert [run.data.tags["mlflow.parentRunId"] for run in flows] == [sweep.info.run_id] * 2
    client(root).delete_run(sweep.info.run_id)  # a person may
    assert tracker(root, "run-3", sweep="s").close() == []
    [again] = runs(root, "tags.`atelier.kind` = 'sweep'")
    assert again.info.run_id != sweep.info.run_id


@pytest.mark.parametrize(
    "module",
    [
        "atelier.infra.tracking.trackers",
        "atelier.infra.report.lineage",
        "atelier.infra.report.lineage_text",
        "atelier.infra.report.render",
    ],
)
def test_importing_loads_neither_mlflow_nor_torch_nor_matplotlib(module: str) -> None:
    heavy = ("mlflow", "torch", "matplotlib", "prefect", "pandas")
    script = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=TOP)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_backend_that_no_waiting_opens_is_given_up_and_told_at_once() -> None:
    tries: list[int] = []

    def refuse() -> Any:
        tries.append(1)
        raise MlflowException("Detected out-of-date database schema (found version x)")

    worker = Worker(refuse, again_s=0.0)
    job = worker.put("registering a", lambda backend: "never")
    assert job.done.wait(10) and "out-of-date" in job.error and len(tries) == 3
    later = worker.put("registering b", lambda backend: "never")
    assert later.done.is_set() and later.error == job.error
    [told] = worker.close(10)
    assert told == f"not written: registering a, registering b ({job.error})"


def test_a_backend_that_is_only_away_is_waited_for() -> None:
    faults: list[Exception] = [ConnectionError("refused"), MlflowException("database is locked")] * 4

    class Open:
        def ping(self) -> None: ...

        def is_lasting(self, error: Exception) -> bool:
            return False

    def open_late() -> Open:
        if faults:
            raise faults.pop()
        return Open()

    worker = Worker(open_late, again_s=0.0)
    job = worker.put("registering a", lambda backend: "done")
    assert job.done.wait(10) and job.result == "done" and worker.close(10) == []
