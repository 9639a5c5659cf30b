"""logs, cancel and debug over real runs: what they say, the bits of what continues, the store that stays."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atelier.flows.deployments.start import run_to_end
from atelier.flows.run.cancel_request import request_cancel
from atelier.flows.run.compose import compose
from atelier.infra.store.store import Store
from tests.checkout import TOP, python_path
from tests.flow.command import Atelier, done, refused

pytestmark = pytest.mark.slow
TINY = ("pretrain", "experiment=tiny", "tracker=none", "score.baselines=false", "train.checkpoint_every=1000")
LONG = (*TINY, "train.steps=60", "name=mine")
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def start(root: Path, *words: str) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_"))}
    env |= {"ATELIER_ROOT": str(root), "PYTHONPATH": python_path(), "PREFECT_HOME": str(root / "prefect")}
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "atelier", *words]
    return subprocess.Popen(command, env=env, cwd=TOP, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def newest(root: Path) -> dict[str, Any]:
    return json.loads(max((root / "runs").glob("*.json")).read_text())


def model_of(root: Path, name: str) -> dict[str, str]:
    """Digests of the files of the model of this name."""
    records = [json.loads(place.read_text()) for place in (root / "model").glob("*/record.json")]
    (record,) = [one for one in records if one["name"] == name]
    return {file["path"].rpartition("/")[2]: file["sha256"] for file in record["files"]}


def files(root: Path) -> dict[str, tuple[int, bytes]]:
    """The store's files with size and content, but for caches, locks and logs of processes."""
    aside = ("scratch", "cache", "slots", "prefect", "pools")
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] not in aside
    }


@pytest.fixture(scope="module")
def cancelled(root: Path) -> Iterator[tuple[dict[str, Any], list[str], str]]:
    """A run that was followed and cancelled: its manifest, and what `logs -f` and `cancel` printed."""
    training = start(root, *LONG)
    wait_for(lambda: any((root / "runs").glob("*.json")), "the run begins")
    following = start(root, "logs", "mine", "-f")
    log = root / "scratch" / newest(root)["id"] / "log.jsonl"
    wait_for(lambda: log.exists() and "/60 steps" in log.read_text(), "it trains")
    cancelling = start(root, "cancel", newest(root)["id"][-6:])
    said, _ = cancelling.communicate(timeout=PATIENCE_S)
    assert cancelling.returncode == 0
    training.communicate(timeout=PATIENCE_S)
    assert training.returncode == 1
    followed, _ = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0
    yield newest(root), followed.splitlines(), said


def test_a_cancelled_run_stops_at_a_checkpoint_and_its_log_is_followed_to_the_end(
    cancelled: tuple[dict[str, Any], list[str], str],
) -> None:
    manifest, followed, said = cancelled
    assert manifest["status"] == "stopped" and manifest["states"]["train"] == "stopped"
    (stopped,) = [line for line in followed if "train: stopped at step" in line]
    step = int(stopped.split("step ")[1].split(",")[0])
    assert 0 < step < 60
    first, second = said.splitlines()
    assert first.endswith(f"is cancelled; checkpoints: mine at step {step}")
    assert second == f"continue {manifest['command']}"
    texts = [line.partition(" ")[2] for line in followed]
    assert texts[0].startswith("curate: ") and texts[-1].startswith("train: stopped  mine")


def test_a_cancelled_run_that_is_continued_has_the_bits_of_one_that_was_not(
    atelier: Atelier,
    cancelled: tuple[dict[str, Any], list[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done(atelier(*LONG))
    assert "nothing to do" in done(atelier(*LONG))
    said = done(atelier("logs", newest_that_trained(atelier.root)["id"], "train"))
    assert "continues from step" in said
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    done(atelier(*LONG))
    assert model_of(tmp_path, "mine") == model_of(atelier.root, "mine")


def newest_that_trained(root: Path) -> dict[str, Any]:
    found = [json.loads(place.read_text()) for place in (root / "runs").glob("*.json")]
    return max((one for one in found if one["states"].get("train") == "done"), key=lambda one: one["id"])


def test_debug_stops_where_it_is_told_and_changes_nothing_in_the_store(
    atelier: Atelier, cancelled: tuple[dict[str, Any], list[str], str]
) -> None:
    manifest, before = cancelled[0], files(atelier.root)
    step = json.loads(done(atelier("debug", manifest["id"], "train", "--json")))["steps"]["model"]
    assert 0 < step < 60
    debugging = start(atelier.root, "debug", manifest["id"], "train", "--break", "loop.step.train_step")
    out, err = debugging.communicate("where\np clock\nq\n", timeout=PATIENCE_S)
    assert debugging.returncode == 0, out + err
    assert "train_from()" in out and f"(Pdb) {step}" in out
    assert f"model: from the checkpoint of step {step}" in err
    assert files(atelier.root) == before and not [*(atelier.root / "scratch").glob("debug-*")]


@pytest.fixture(scope="module")
def two(root: Path) -> str:
    """The id of a run whose training ran on two ranks."""
    words = (*TINY, "train.steps=12", "train.seed=2", "parallel.shard=2", "name=two")
    training = start(root, *words)
    _, said = training.communicate(timeout=PATIENCE_S)
    assert training.returncode == 0, said
    return newest_that_trained(root)["id"]


def test_debug_runs_a_gang_of_two_ranks_to_its_end_as_one_process_and_publishes_nothing(
    atelier: Atelier, two: str
) -> None:
    before, records = files(atelier.root), [*atelier.root.glob("*/*/record.json")]
    debugging = start(atelier.root, "debug", f"{two}/train", "--step", "0")
    out, err = debugging.communicate("", timeout=PATIENCE_S)
    assert debugging.returncode == 0, out + err
    assert "it ran on 2 ranks (shard=2)" in err and "12/12 steps" in out
    assert files(atelier.root) == before and [*atelier.root.glob("*/*/record.json")] == records
    found = json.loads(done(atelier("debug", f"{two}/train", "--json")))
    assert found["split"] == {"shard": 2} and found["module"] == "atelier.engine.train"


def test_debug_opens_at_an_error_with_its_stack(atelier: Atelier, two: str) -> None:
    """A damaged input: the bytes of a tokens file."""
    (tokens,) = atelier.root.glob("tokens/*/payload-*/train.bin")
    content = tokens.read_bytes()
    tokens.write_bytes(content[:1000])
    try:
        debugging = start(atelier.root, "debug", f"{two}/train", "--step", "0")
        out, err = debugging.communicate("where\np found.bytes\nq\n", timeout=PATIENCE_S)
    finally:
        tokens.write_bytes(content)
    assert debugging.returncode == 1, out + err
    assert "raise DamageError" in out and "train_from()" in out and "(Pdb) 1000" in out


def test_debug_refuses_what_it_cannot_run(atelier: Atelier, two: str) -> None:
    assert "report of the run" in refused(atelier("debug", two, "report"))
    assert "its tasks: curate" in refused(atelier("debug", two))
    assert "'x' is no step" in refused(atelier("debug", two, "train", "--step", "x"))
    wrong = start(atelier.root, "debug", two, "train", "--break", "loop.step.tran_step")
    assert "no function loop.step.tran_step" in wrong.communicate(timeout=PATIENCE_S)[1]
    assert wrong.returncode == 2


def test_a_request_from_before_a_run_began_again_does_not_stop_it(atelier: Atelier) -> None:
    """A retry on Prefect's page has the id of the run that was cancelled."""
    request_cancel(str(atelier.root), "again")
    frozen = compose("pretrain", [*TINY[1:], "train.steps=4", "name=brief"])
    assert run_to_end(frozen, Store(str(atelier.root)), "", run_id="again").failure is None
    assert not [*(atelier.root / "runs").glob("*.cancel")]
