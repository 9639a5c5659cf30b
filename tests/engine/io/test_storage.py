"""Checkpoints during training when the store is remote, unreachable, full, damaged, or holds other files."""

import errno
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from atelier.engine.checkpoint import commit
from atelier.engine.checkpoint.folder import steps
from atelier.engine.config.error import AtelierError, ConfigError, StoppedError
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import SegmentAddress
from atelier.engine.io import storage
from atelier.engine.io.storage import TEMPORARY, join
from tests.engine.checkpoint.ftp import serving
from tests.engine.trainings import ONE, AfterSteps, TrainingSetup, model, role, student, train
from tests.forks import Rank

ROLES: dict[str, Role] = {"teacher": role(shape=model(32, dropout=0.1)), "s": student()}
# fsspec's FTP client leaves its connections to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
GRACE_S = 10.0  # what pools give a gang by default (infra/launch/gang.py)
KEPT = train(8, checkpoint_every=2, keep=1, keep_best=1, keep_every=4)
TWO = ONE.model_copy(update={"shard": 2})


class Away(TrainingSetup):
    """A house whose trajectories lie at a URL."""

    def __init__(self, folder: Path, url: str) -> None:
        super().__init__(folder)
        self.url = url

    def segment(self, name: str, start: int, end: int, *, attempt: int = 1) -> SegmentAddress:
        here = super().segment(name, start, end, attempt=attempt)
        return here.model_copy(update={"url": join(self.url, name)})


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path / "house")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TrainingSetup:
    """With a store that works: `model` after 12 steps, ROLES after 8."""
    setup = TrainingSetup(tmp_path_factory.mktemp("undisturbed"))
    setup.train(setup.training({"model": role()}, train(12, keep=9)))
    setup.train(setup.training(ROLES, KEPT))
    return setup


@pytest.fixture(params=["memory", "file", "ftp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each kind."""
    if request.param == "ftp":
        with serving(tmp_path / "ftp") as server:
            yield f"{server.url}/store"
    else:
        yield f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/store"


def together(
    training_setup: TrainingSetup, steps: int = 8, world: int = 2, **more: Any
) -> list[tuple[int, list[dict]]]:
    """Train in a gang; exit code and lines of every rank."""
    run = training_setup.run_file(training_setup.training(ROLES, train(steps, **more)), layout=TWO)
    return [finish(process) for process in training_setup.processes(run, world=world)]


def finish(process: Rank) -> tuple[int, list[dict]]:
    out, errors = process.communicate(timeout=300)
    assert errors == ""
    return process.returncode, [json.loads(line) for line in out.splitlines()]


def said(capsys: pytest.CaptureFixture[str], word: str) -> list[Any]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line[word] for line in lines if word in line]


def test_any_fsspec_url_holds_a_training_that_stops_resumes_and_ends_with_the_same_bits(
    undisturbed: TrainingSetup, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Away(tmp_path / "away", url)
    with pytest.raises(StoppedError):
        away.train(away.training(ROLES, KEPT), stop=AfterSteps(tmp_path, 5))
    capsys.readouterr()
    away.train(away.training(ROLES, KEPT))
    assert said(capsys, "resumed") == [5]
    for name in ROLES:
        assert away.weights(name) == undisturbed.weights(name)
        assert steps(f"{url}/{name}/checkpoints") == undisturbed.steps(name)
        assert steps(f"{url}/{name}/checkpoints")[-1] == 8


@pytest.mark.slow
def test_two_ranks_share_a_remote_store_and_pass_over_what_is_damaged_in_it(
    training_setup: TrainingSetup, tmp_path: Path
) -> None:
    assert [code for code, _ in together(training_setup)] == [0, 0]
    with serving(tmp_path / "ftp") as server:
        away = Away(tmp_path / "away", server.url)
        assert [code for code, _ in together(away)] == [0, 0]
        assert {name: away.weights(name) for name in ROLES} == {
            name: training_setup.weights(name) for name in ROLES
        }
        file = next((tmp_path / "ftp" / "s" / "checkpoints" / "step-00000008").glob("rank-0001*"))
        file.write_bytes(file.read_bytes()[:-1])
        (code, lines), _ = together(away)
        assert code == 0 and lines[0]["resumed"] == 4 and f"{file.name}: " in lines[0]["damages"][0]
        assert away.weights("s") == training_setup.weights("s")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://127.0.0.1:1/store", "the store cannot be written to (ConnectionRefusedError"),
        ("gs://nobody-knows/store", "no such kind of storage (Please install gcsfs"),
        ("nosuch://x/store", "no such kind of storage (Protocol not known: nosuch"),
    ],
)
def test_a_store_that_cannot_be_reached_is_one_clear_error_before_anything_is_trained(
    tmp_path: Path, url: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Away(tmp_path, url)
    with pytest.raises(ConfigError) as caught:
        away.train(away.training(ROLES, train(8)))
    assert str(caught.value).startswith(f"{url}/teacher/checkpoints") and problem in str(caught.value)
    assert caught.value.way_out and not said(capsys, "progress")


def test_every_rank_of_a_gang_tells_why_the_store_cannot_be_reached(tmp_path: Path) -> None:
    url = "ftp://127.0.0.1:1/store"
    for code, lines in together(Away(tmp_path, url)):
        assert code == 2 and len(lines) == 1
        assert lines[0]["error"].startswith(f"{url}/teacher/checkpoints: the store cannot be written to")


class Room:
    """A file on a disk with so much room left."""

    def __init__(self, file: IO[bytes], room: int, code: int) -> None:
        self.file, self.room, self.code = file, room, code

    def write(self, data: memoryview) -> None:
        if len(data) > self.room:
            raise OSError(self.code, os.strerror(self.code))
        self.room -= len(data)
        self.file.write(data)


def break_disk(patch: pytest.MonkeyPatch, where: str, code: int, *hit: int) -> None:
    """The disk refuses in the middle of the saves of steps `hit`."""
    writing, write, fsync, rename = storage.writing, commit.write_bytes, os.fsync, Path.rename

    def refuse(place: object) -> None:
        if any(f"step-{step:08d}" in str(place) for step in hit):
            raise OSError(code, os.strerror(code), str(place))

    @contextmanager
    def half(place: str) -> Iterator[Any]:
        is_hit = any(f"step-{step:08d}" in place for step in hit)
        with writing(place) as file:
            yield Room(file, 4096, code) if is_hit else file

    if where == "half a file":
        patch.setattr(storage, "writing", half)
    if where == "manifest":
        patch.setattr(commit, "write_bytes", lambda url, data: refuse(url) or write(url, data))
    if where == "fsync":
        patch.setattr(storage.os, "fsync", lambda fd: refuse(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))
    if where == "rename":
        patch.setattr(Path, "rename", lambda self, other: refuse(self) or rename(self, other))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("where", ["half a file", "fsync", "manifest", "rename"])
def test_a_disk_that_refuses_in_mid_save_is_told_and_training_goes_on_to_the_same_bits(
    training_setup: TrainingSetup,
    undisturbed: TrainingSetup,
    where: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        break_disk(patch, where, code, 8)
        training_setup.train(training_setup.training({"model": role()}, train(12, keep=9)))
    [warning] = said(capsys, "warning")
    assert warning.startswith("checkpoint model step 8 failed: ")
    assert os.strerror(code) in warning and "step-00000008" in warning
    assert training_setup.steps("model") == [4, 12]
    assert training_setup.weights("model") == undisturbed.weights("model")
    assert not list(training_setup.folder.glob(f"trajectory/*/checkpoints/{TEMPORARY}*"))


class RefusedError(Exception):
    """What the client of some store raises, which is no OSError."""


def test_an_error_of_the_stores_own_kind_is_told_and_training_goes_on(
    training_setup: TrainingSetup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = storage.writing

    @contextmanager
    def refusing(place: str) -> Iterator[Any]:
        if "step-00000008" in place:
            raise RefusedError("550 quota")
        with writing(place) as file:
            yield file

    monkeypatch.setattr(storage, "writing", refusing)
    training_setup.train(training_setup.training({"model": role()}, train(12, keep=9)))
    assert said(capsys, "warning") == ["checkpoint model step 8 failed: 550 quota"]
    assert training_setup.steps("model") == [4, 12]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_to_the_end_stops_training_with_one_error_and_the_last_good_checkpoint(
    training_setup: TrainingSetup, undisturbed: TrainingSetup, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    roles = {"model": role()}
    with pytest.MonkeyPatch.context() as patch:
        break_disk(patch, "half a file", code, 8, 12)
        with pytest.raises(AtelierError, match=f"no checkpoint could be written.*{os.strerror(code)}"):
            training_setup.train(training_setup.training(roles, train(12, keep=9)))
    assert training_setup.steps("model") == [4]
    capsys.readouterr()
    training_setup.train(training_setup.training(roles, train(12, keep=9)))
    assert said(capsys, "resumed") == [4] and training_setup.weights("model") == undisturbed.weights("model")


def checkpoint(training_setup: TrainingSetup, name: str, step: int) -> Path:
    return training_setup.folder / "trajectory" / name / "checkpoints" / f"step-{step:08d}"


def test_a_checkpoint_of_another_trajectory_is_named_and_passed_over(
    training_setup: TrainingSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    training_setup.train(training_setup.training({"model": role(), "wide": role(64)}, train(8)))
    mine = checkpoint(training_setup, "model", 8)
    shutil.rmtree(mine)
    shutil.copytree(checkpoint(training_setup, "wide", 8), mine)
    capsys.readouterr()
    training_setup.train(training_setup.training({"model": role()}, train(8)))
    [[damage]] = said(capsys, "damages")
    assert damage.startswith(f"{mine}/manifest.json: holds trajectory ")
    assert training_setup.summary("model")["step"] == 8


def test_a_checkpoint_of_another_model_is_refused_with_both_shapes(training_setup: TrainingSetup) -> None:
    training_setup.train(training_setup.training({"model": role(32)}, train(8)))
    with pytest.raises(ConfigError) as caught:
        training_setup.train(training_setup.training({"model": role(64)}, train(12)))
    text = str(caught.value)
    assert text.startswith(f"{checkpoint(training_setup, 'model', 8)}/manifest.json: ")
    assert "has shape (" in text and "the state's has (" in text
    assert text.endswith("build the model that was saved")


def test_a_missing_shard_is_named_by_a_gang_that_goes_on_from_the_checkpoint_before(
    training_setup: TrainingSetup,
) -> None:
    assert [code for code, _ in together(training_setup)] == [0, 0]
    before = {name: training_setup.weights(name) for name in ROLES}
    shard = next(checkpoint(training_setup, "teacher", 8).glob("rank-0001*"))
    shard.unlink()
    (code, lines), _ = together(training_setup)
    assert code == 0 and lines[0] == {"resumed": 4, "damages": [f"{shard}: missing"]}
    assert {name: training_setup.weights(name) for name in ROLES} == before


@pytest.mark.slow
def test_sigterm_leaves_an_emergency_checkpoint_in_the_grace_time_that_goes_on_to_the_same_bits(
    training_setup: TrainingSetup, tmp_path: Path
) -> None:
    other = TrainingSetup(tmp_path / "other")
    how = {"steps": 100, "checkpoint_every": 10**6, "eval_every": 10**6}
    assert [code for code, _ in together(other, **how)] == [0, 0]
    run = training_setup.run_file(training_setup.training(ROLES, train(**how)), layout=TWO)
    ranks = training_setup.processes(run, world=2)
    assert ranks[0].stdout is not None
    while "progress" not in ranks[0].stdout.readline():
        assert ranks[0].poll() is None
    asked = time.monotonic()
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)
    (code, lines), (other_code, _) = [finish(rank) for rank in ranks]
    assert code == other_code == 75 and time.monotonic() - asked < GRACE_S
    step = lines[-1]["stopped"]
    assert 0 < step < 100 and training_setup.steps("teacher") == training_setup.steps("s") == [step]
    (code, lines), _ = together(training_setup, **how)
    assert code == 0 and lines[0] == {"resumed": step}
    for name in ROLES:
        assert training_setup.weights(name) == other.weights(name) and training_setup.curve(
            name
        ) == other.curve(name)
