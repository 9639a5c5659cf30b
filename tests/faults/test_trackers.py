"""MLflow, TensorBoard and W&B show the same points of a training, whatever happens to its run."""

import os
import signal
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.command import OWN_SERVER, TRAIN, Command, CommandStore
from tests.infra.shown import Points, in_mlflow, in_tensorboard, in_wandb, wandb_exits

ALL = (*(word for word in TRAIN if word != "tracker=none"), "tracker.beside=[tensorboard,wandb]")
LONG = (*ALL, "train.steps=2400", "train.checkpoint_every=50")
OFFLINE = {**OWN_SERVER, "WANDB_API_KEY": "", "WANDB_MODE": "", "WANDB_DIR": "", "MLFLOW_TRACKING_URI": ""}


@pytest.mark.slow
def test_three_trackers_have_equal_points_also_after_a_kill_and_a_resume(
    command_store: CommandStore, start: Callable[..., Command], tmp_path: Path
) -> None:
    root, env = command_store.root, OFFLINE | {"WANDB_CACHE_DIR": str(tmp_path / "cache")}
    first = start(*LONG, env=env)
    first.until(lambda: _num_drawn(root) and _num_bytes(root) and _sessions(root), "points everywhere")
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    command_store.wait_for_quiet()  # neither ranks nor W&B's own process outlive it
    killed = in_mlflow(root)
    again = start(*LONG, env=env)
    assert again.wait() == 0, again.text
    shown = in_mlflow(root)
    assert killed
    for run, points in killed.items():  # the resumed run goes on with the same curve
        assert all(
            set(each) <= set(shown[run][key]) for key, each in points.items() if key != "effective_time"
        )
    assert_same(root)
    whole = longest(shown)
    assert max(step for step, _ in whole["loss"]) == 2400 and "system/cpu_cores" in whole
    assert f"tensorboard --logdir {root}/tensorboard" in again.text
    assert f"wandb sync {root}/wandb/offline-run-" in again.text
    assert set(wandb_exits(root).values()) == {0}


@pytest.mark.slow
def test_a_training_that_is_stopped_ends_its_curves_as_stopped_and_goes_on_with_them(
    command_store: CommandStore, start: Callable[..., Command], tmp_path: Path
) -> None:
    root, env = command_store.root, OFFLINE | {"WANDB_CACHE_DIR": str(tmp_path / "cache")}
    first = start(*LONG, env=env)
    first.until_training(100)
    first.interrupt()
    assert first.wait() != 0
    command_store.wait_for_quiet()
    assert_same(root)
    assert 143 in wandb_exits(root).values()
    assert start(*LONG, env=env).wait() == 0
    assert_same(root)


def assert_same(root: Path) -> None:
    """Every point once, in all three; TensorBoard has float32."""
    mlflow, board, wandb = in_mlflow(root), in_tensorboard(root), in_wandb(root)
    assert mlflow.keys() == board.keys() == wandb.keys() and mlflow
    for run, points in mlflow.items():
        for key, each in points.items():
            steps = [step for step, _ in each]
            assert len(set(steps)) == len(steps), (run, key)
        assert points == wandb[run], run
        assert {key: [(s, single(v)) for s, v in each] for key, each in points.items()} == board[run], run


def longest(shown: dict[str, Points]) -> Points:
    return max(shown.values(), key=lambda points: len(points["loss"]))


def single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def _num_drawn(root: Path) -> int:
    """Measurements in MLflow that no metric file has."""
    if not (root / "mlflow.db").exists():
        return 0
    with closing(sqlite3.connect(f"file:{root / 'mlflow.db'}?mode=ro", uri=True)) as database:
        try:
            [[count]] = database.execute("select count(*) from metrics where key = 'system/cpu_cores'")
        except sqlite3.OperationalError:  # not made yet
            return 0
    return count


def _num_bytes(root: Path) -> int:
    return sum(path.stat().st_size > 1000 for path in root.glob("tensorboard/*/*/*/events.*"))


def _sessions(root: Path) -> list[Path]:
    return list(root.glob("wandb/offline-run-*/*.wandb"))
