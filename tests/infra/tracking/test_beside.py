"""TensorBoard and W&B beside MLflow: the same points once, and no effect on the run."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.run_file import SegmentAddress
from atelier.flows.run.compose import compose
from atelier.infra.store.store import Store
from atelier.infra.tracking import factory, sink
from atelier.infra.tracking.about import Followed, RunInfo
from atelier.infra.tracking.curve import DRAWN, Curve, curves_of
from atelier.infra.tracking.factory import TrackerSpec
from atelier.infra.tracking.sink import SinkTracker
from atelier.infra.tracking.trackers import Trackers
from tests.infra.records import Shelf, family
from tests.infra.runs import DATA, follow_once, tracker
from tests.infra.shown import in_mlflow, in_tensorboard, in_wandb, wandb_exits

NAMES = ["tensorboard", "wandb"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sink, "CLOSE_S", 300.0)  # a busy machine starts W&B's process late


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Store(str(tmp_path)))


def about(run: str = "run-1") -> RunInfo:
    return RunInfo(flow="demo", command="atelier demo", run_id=run, config={})


def followed(*segments: SegmentAddress) -> list[Followed]:
    return [Followed(segments=segments, role="model", params={"model": {"hidden": 32}})]


def show(shelf: Shelf, *segments: SegmentAddress, run: str = "run-1", status: str = "FINISHED") -> list[str]:
    """Follow a training that has ended with both trackers; what they could not write."""
    curves = curves_of(followed(*segments), is_shared=True)
    trackers = [SinkTracker(name, shelf.store, about(run)) for name in NAMES]
    for following in [each.follow(curves) for each in trackers]:
        following.stop(status)
    return [text for each in trackers for text in each.close(status)]


def test_a_resumed_training_goes_on_in_the_same_folder_and_with_the_same_id(
    shelf: Shelf, tmp_path: Path
) -> None:
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    assert show(shelf, segment, status="KILLED") == []
    [run] = wandb_exits(tmp_path)
    assert wandb_exits(tmp_path) == {run: 143} and segment.fingerprint.startswith(run)
    shelf.metrics(segment, range(21, 61), attempt=2)
    assert show(shelf, segment, run="run-2") == []
    assert [path.name for path in (tmp_path / "tensorboard" / "demo").iterdir()] == ["run-1"]
    [drawn], [logged] = in_tensorboard(tmp_path).values(), in_wandb(tmp_path).values()
    assert [step for step, _ in drawn["loss"]] == [step for step, _ in logged["loss"]] == [*range(1, 61)]
    assert drawn.keys() == logged.keys()
    assert wandb_exits(tmp_path) == {run: 0}


def test_mlflow_and_the_trackers_beside_it_have_equal_points(shelf: Shelf, tmp_path: Path) -> None:
    trunk = shelf.trajectory("model", DATA, end=30)
    branch = shelf.trajectory("model", DATA | {"trunk": trunk.fingerprint}, start=30, end=300)
    shelf.metrics(trunk, range(1, 31))
    shelf.metrics(branch, range(31, 301))
    assert show(shelf, trunk, branch) == []
    tracked = tracker(tmp_path)
    follow_once(tracked, trunk, branch)
    assert tracked.close() == []
    drop = {"effective_time"}  # of the gangs that were followed
    mlflow, logged = in_mlflow(tmp_path), in_wandb(tmp_path)
    assert {run: {k: v for k, v in points.items() if k not in drop} for run, points in mlflow.items()} == {
        run: {k: v for k, v in points.items() if k not in drop} for run, points in logged.items()
    }
    assert len(mlflow) == 2 and in_tensorboard(tmp_path).keys() == mlflow.keys()


def test_another_process_that_draws_a_curve_is_left_alone_and_its_end_is_taken_over(
    shelf: Shelf, tmp_path: Path
) -> None:
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    other = Curve(followed(segment)[0], 0, is_shared=True)
    other.begin(shelf)
    assert other.claim()
    assert show(shelf, segment) == [] and not (tmp_path / "wandb").exists()
    other.release(shelf)
    assert show(shelf, segment) == []
    assert [len(points["loss"]) for points in in_wandb(tmp_path).values()] == [30]


def test_what_was_measured_once_is_drawn_everywhere_and_a_torn_line_is_left_out(shelf: Shelf) -> None:
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 4))
    first = Curve(followed(segment)[0], 0, is_shared=True)
    first.begin(shelf)
    assert first.claim()
    first.poll()
    first.release(shelf)
    drawn = Path(segment.url) / DRAWN
    drawn.write_text(
        drawn.read_text().replace('"loss": ', '"system/cpu_cores": 1.5, "loss": ') + '{"step": 4, "ti'
    )
    second = Curve(followed(segment)[0], 0, is_shared=True)
    assert second.claim()
    second.finish()
    second.release(shelf)
    assert [row.values["system/cpu_cores"] for row in second.rows] == [1.5] * 3


def test_a_tracker_that_fails_is_said_once_and_the_others_go_on(shelf: Shelf, tmp_path: Path) -> None:
    segments = [shelf.trajectory(name, DATA) for name in ("one", "two")]
    for segment in segments:
        shelf.metrics(segment, range(1, 31))
    (tmp_path / "tensorboard").write_text("in the way")
    curves = curves_of([followed(segment)[0] for segment in segments], is_shared=True)
    trackers = [SinkTracker(name, shelf.store, about()) for name in NAMES]
    for following in [each.follow(curves) for each in trackers]:
        following.stop()
    [said] = [text for each in trackers for text in each.close("FINISHED")]
    assert said.startswith("not in TensorBoard: the curve of model: ") and "\n" not in said
    assert [len(points["loss"]) for points in in_wandb(tmp_path).values()] == [30, 30]


def test_without_an_answer_of_the_server_the_run_is_kept_for_a_sync_and_the_key_nowhere(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "0123456789abcdef" * 2
    monkeypatch.setenv("WANDB_API_KEY", secret)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody answers
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    assert show(shelf, segment) == []
    assert [len(points["loss"]) for points in in_wandb(tmp_path).values()] == [30]  # for `wandb sync`
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    ]


def test_a_model_that_is_reused_gets_the_curve_that_it_lacks_and_none_twice(
    shelf: Shelf, tmp_path: Path
) -> None:
    made = family(tmp_path)
    record = made.records["teacher"]
    for run in ("run-1", "run-2"):
        beside = Trackers(None, NAMES, Store(str(tmp_path)), about(run))
        beside.record(record)
        assert beside.close("finished") == []
        assert len(beside.places) == (2 if run == "run-1" else 0)
    [logged], [drawn] = in_wandb(tmp_path).values(), in_tensorboard(tmp_path).values()
    assert [s for s, _ in logged["loss"]] == [s for s, _ in drawn["loss"]] and len(logged["loss"]) > 100


def test_a_training_that_begins_again_begins_a_new_curve(shelf: Shelf, tmp_path: Path) -> None:
    segment = shelf.trajectory("model", DATA)
    shelf.metrics(segment, range(1, 31))
    assert show(shelf, segment) == []
    shutil.rmtree(Path(segment.url) / "metrics")
    (Path(segment.url) / DRAWN).unlink()
    beside = Trackers(None, NAMES, shelf.store, about("run-2"))
    beside.begin_again([segment.fingerprint])
    assert beside.close("finished") == []
    shelf.metrics(segment, range(1, 6), attempt=2)
    assert show(shelf, segment, run="run-2") == []
    for points in [*in_wandb(tmp_path).values(), *in_tensorboard(tmp_path).values()]:
        assert [step for step, _ in points["loss"]] == [1, 2, 3, 4, 5]


def test_what_is_not_installed_or_unknown_ends_at_compose_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert parse(TrackerSpec, {"beside": "wandb"}, "tracker").beside == ("wandb",)
    assert compose("pretrain", ["experiment=tiny", "tracker=tensorboard"]).tracker.beside == ("tensorboard",)
    monkeypatch.setattr(factory, "find_spec", lambda name: None if name == "wandb" else find_spec(name))
    for word, said in (
        ("tracker.beside=[tensorboard,wandb]", "wandb is not installed; pip install wandb"),
        ("tracker.beside=[tensorbord]", "no tracker 'tensorbord'; did you mean tensorboard?"),
    ):
        with pytest.raises(ConfigError) as refused:
            compose("pretrain", ["experiment=tiny", word])
        assert said in str(refused.value) and str(refused.value).startswith("tracker.beside: ")
