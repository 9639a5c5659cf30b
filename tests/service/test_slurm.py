"""Gangs as jobs of a real Slurm: two nodes train what one machine trains, whatever happens to their job."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import PROJECT, wait_for

from infra.trajectory import checkpoint_steps
from tests.service.slurm_cluster import Cluster, cluster, what_is_missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "all is there"),
]

WORDS = (
    "experiment=tiny", "model=gpt_nano", "model.hidden=32", "model.num_heads=2", "train.eval_sequences=4",
    "score.baselines=false", "score.max_tokens=500", "train.steps=300", "train.checkpoint_every=20",
    "parallel.shard=2", "parallel.threads=1", "tracker=none",
)  # fmt: skip
SLURM = ("pool=slurm", "pool.name=", "pool.slots=1", "pool.grace_s=8")
PATIENCE_S = 300.0  # a loaded machine; nothing waits that long when it is quiet


class Shop:
    """A store with tokens in it, and the command line beside a cluster."""

    def __init__(self, root: Path, slurm: Cluster | None) -> None:
        self.root, self.slurm = root, slurm
        self.started: list[subprocess.Popen[str]] = []
        kept = slurm.environment if slurm else dict(os.environ)
        # what a job must never see
        self.environment = kept | {"ATELIER_ROOT": str(root), "MLFLOW_TRACKING_PASSWORD": "open sesame"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows", "pretrain", *WORDS, *words]
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def end(self) -> None:
        """End what a test that failed has left."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def run(self, *words: str) -> str:
        """Run to a good end; what was said."""
        return ended(self.start(*words))

    def until_step(self, step: int) -> int:
        """Return when a checkpoint of `step` or later is there: which."""
        return wait_for(
            lambda: next((there for there in self.steps() if there >= step), None),
            PATIENCE_S,
            f"a checkpoint of step {step}",
        )

    def steps(self) -> list[int]:
        return [step for place in self.root.glob("trajectory/*") for step in checkpoint_steps(str(place))]

    def job(self) -> str:
        """The id of the training's job."""
        assert self.slurm is not None
        told = self.slurm.run("squeue", "--noheader", "--states=all", "--format=%i %j %T").stdout
        rows = [line.split() for line in told.splitlines()]
        return max((row[0] for row in rows if row[1] == "atelier-train"), key=int)

    def weights(self) -> str:
        """The digest of the model's weights."""
        [record] = [json.loads(path.read_text()) for path in self.root.glob("model/*/record.json")]
        return next(file["sha256"] for file in record["files"] if file["path"].endswith("model.safetensors"))


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, said
    return said


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("slurm") / "c") as made:
        yield made


@pytest.fixture
def slurm(started: Cluster) -> Iterator[Cluster]:
    """The module's cluster, idle."""
    yield started
    started.clear()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the tokens are made already."""
    root = tmp_path_factory.mktemp("tokens") / "store"
    command = [sys.executable, "-m", "flows", "corpus", "experiment=tiny", "tracker=none"]
    subprocess.run(command, env=os.environ | {"ATELIER_ROOT": str(root)}, cwd=PROJECT, check=True)
    return root


@pytest.fixture(scope="module")
def expected(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that two ranks of this machine make without any mishap."""
    root = tmp_path_factory.mktemp("here") / "store"
    shutil.copytree(tokens, root)
    shop = Shop(root, None)
    shop.run()
    return shop.weights()


@pytest.fixture
def shop(slurm: Cluster, tokens: Path, tmp_path: Path) -> Iterator[Shop]:
    shutil.copytree(tokens, tmp_path / "store")
    made = Shop(tmp_path / "store", slurm)
    yield made
    made.end()


def test_a_gang_of_two_nodes_makes_the_bits_of_one_machine_and_sees_no_credential(
    shop: Shop, expected: str
) -> None:
    training = shop.start(*SLURM)
    shop.until_step(20)
    told = shop.slurm.run("scontrol", "-o", "show", "job", shop.job()).stdout
    assert " NumNodes=2 " in told
    ranks = [
        path.read_bytes()
        for path in Path("/proc").glob("[0-9]*/environ")
        if b"engine.train" in _read(path.with_name("cmdline")) and str(shop.root).encode() in _read(path)
    ]
    assert ranks and all(b"open sesame" not in environ for environ in ranks)
    said = ended(training)
    assert "waits for node" in said or "train: 1/" in said
    assert shop.weights() == expected


def test_a_cancelled_job_has_stopped_at_a_checkpoint_and_the_same_command_goes_on(
    shop: Shop, expected: str
) -> None:
    training = shop.start(*SLURM)
    shop.until_step(40)
    shop.slurm.run("scancel", shop.job())
    said = ended(training, code=1)
    assert "is cancelled; it has stopped at a checkpoint" in said
    shop.run(*SLURM)
    assert shop.weights() == expected


def test_who_asked_stops_the_gang_at_a_checkpoint(shop: Shop, expected: str) -> None:
    training = shop.start(*SLURM)
    shop.until_step(40)
    training.send_signal(signal.SIGINT)
    ended(training, code=1)
    shop.slurm.wait_state(shop.job(), "CANCELLED", "COMPLETED", "FAILED")
    assert max(shop.steps()) < 300
    shop.run(*SLURM)
    assert shop.weights() == expected


def test_a_preempted_gang_gives_its_nodes_back_at_a_checkpoint_and_goes_on_when_they_are_free(
    shop: Shop, expected: str
) -> None:
    training = shop.start(*SLURM)
    shop.until_step(40)
    job = shop.job()
    urgent = shop.slurm.submit("sleep 3", "--partition=high", "--nodes=3", "--exclusive")
    shop.slurm.wait_state(urgent, "COMPLETED", timeout_s=PATIENCE_S)
    ended(training)
    assert shop.job() == job and "Restarts=1" in shop.slurm.run("scontrol", "-o", "show", "job", job).stdout
    assert shop.weights() == expected


def test_a_gang_that_loses_a_node_goes_on_on_another(shop: Shop, expected: str) -> None:
    training = shop.start(*SLURM)
    shop.until_step(40)
    job = shop.job()
    told = shop.slurm.run("scontrol", "-o", "show", "job", job).stdout
    lost = next(word.partition("=")[2] for word in told.split() if word.startswith("BatchHost="))
    shop.slurm.kill_node(lost)
    try:
        ended(training)
    finally:
        shop.slurm.start_node(lost)
    assert shop.weights() == expected


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [("partition", "nope", "invalid partition specified: nope"), ("constraint", "nope", "Invalid feature")],
)
def test_what_slurm_would_refuse_is_said_before_anything_is_planned(
    slurm: Cluster, tmp_path: Path, key: str, value: str, reason: str
) -> None:
    from engine.spec.error import ConfigError
    from engine.spec.site import Slurm
    from infra.slurm import SlurmBatch

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        with pytest.raises(ConfigError, match=reason):
            SlurmBatch(Slurm(**{key: value}), gpus=False).check(str(tmp_path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
