"""Gangs as jobs of a real Slurm: two nodes train the same as one machine, whatever happens to their job."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.service.shop import PATIENCE_S, Shop, ended
from tests.service.slurm_cluster import Cluster, what_is_missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "all is there"),
]

TRAIN = ("train.steps=300", "parallel.shard=2", "tracker=none")
SLURM = (*TRAIN, "pool=slurm", "pool.name=", "pool.slots=1", "pool.grace_s=8")


@pytest.fixture(scope="module")
def expected(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that two ranks of this machine make without any mishap."""
    root = tmp_path_factory.mktemp("here") / "store"
    shutil.copytree(tokens, root)
    shop = Shop(root, None)
    shop.run(*TRAIN)
    return shop.weights()


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
        if b"atelier.engine.train" in _read(path.with_name("cmdline"))
        and str(shop.root).encode() in _read(path)
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
    assert "is cancelled; it stopped at a checkpoint" in said
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
    from atelier.engine.config.error import ConfigError
    from atelier.engine.config.site import Slurm
    from atelier.infra.launch.slurm import SlurmBatch

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
        with pytest.raises(ConfigError, match=reason):
            SlurmBatch(Slurm(**{key: value}), gpus=False).check(str(tmp_path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
