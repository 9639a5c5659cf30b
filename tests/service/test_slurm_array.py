"""A sweep as a job array of a real Slurm: whole points on nodes, whatever happens to them or to the
submitter.
"""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from atelier.infra.store.run_manifest import manifests
from atelier.infra.store.store import Store
from tests.flow.served import wait_for
from tests.service.shop import PATIENCE_S, Shop, ended
from tests.service.slurm_cluster import Cluster, what_is_missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "all is there"),
]

SWEEP = ("-m", "train.steps=400", "parallel.shard=1", "pool.grace_s=8", "train.seed=1,2,3")
ARRAY = (*SWEEP, "hydra/launcher=slurm", "pool=slurm", "pool.slots=1")


def models(shop: Shop) -> dict[str, str]:
    """The digest of each model's weights by the model's fingerprint."""
    return {
        path.parent.name: next(
            file["sha256"]
            for file in json.loads(path.read_text())["files"]
            if file["path"].endswith("model.safetensors")
        )
        for path in shop.root.glob("model/*/record.json")
    }


def elements(shop: Shop) -> list[tuple[str, str]]:
    """(number, state) of each element of the sweep's newest array."""
    assert shop.slurm is not None
    told = shop.slurm.run("squeue", "--noheader", "--array", "--states=all", "--format=%F %K %j %T").stdout
    rows = [row for row in (line.split() for line in told.splitlines()) if "atelier-sweep" in row[2]]
    newest = max((int(row[0]) for row in rows), default=0)
    return [(row[1], row[3]) for row in rows if int(row[0]) == newest]


@pytest.fixture(scope="module")
def expected(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the same sweep makes on this machine."""
    root = tmp_path_factory.mktemp("here") / "store"
    shutil.copytree(tokens, root)
    shop = Shop(root, None)
    shop.run(*SWEEP, "tracker=none")
    return models(shop)


def test_a_sweep_is_one_array_with_so_many_elements_at_once_and_makes_the_bits_of_one_machine(
    shop: Shop, expected: dict[str, str]
) -> None:
    sweep = shop.start(*ARRAY, "hydra.launcher.width=2", "tracker=mlflow")
    wait_for(lambda: len(elements(shop)) == 3, PATIENCE_S, "an array of three")
    most = 0
    while sweep.poll() is None:
        most = max(most, sum(state == "RUNNING" for _, state in elements(shop)))
    said = ended(sweep)
    assert most == 2 and "3 of 3 points finished" in said
    assert models(shop) == expected
    runs = [run for run in manifests(Store(str(shop.root))) if run.flow == "pretrain"]
    assert len(runs) == 3 and {run.status for run in runs} == {"finished"}
    assert all(run.links for run in runs), "each has its page in MLflow"


def test_who_asked_may_die_and_the_same_command_follows_the_array(
    shop: Shop, expected: dict[str, str]
) -> None:
    sweep = shop.start(*ARRAY, "tracker=none")
    shop.until_step(20)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    said = shop.run(*ARRAY, "tracker=none")
    assert "continues as Slurm job" in said and "3 of 3 points finished" in said
    assert models(shop) == expected


def test_preempted_elements_stop_at_a_checkpoint_and_go_on(shop: Shop, expected: dict[str, str]) -> None:
    sweep = shop.start(*ARRAY, "tracker=none")
    shop.until_step(40)
    assert shop.slurm is not None
    urgent = shop.slurm.submit("sleep 3", "--partition=high", "--nodes=3", "--exclusive")
    shop.slurm.wait_state(urgent, "COMPLETED", timeout_s=PATIENCE_S)
    ended(sweep)
    assert models(shop) == expected


def test_who_asked_stops_all_elements_and_the_same_command_goes_on(
    shop: Shop, expected: dict[str, str]
) -> None:
    sweep = shop.start(*ARRAY, "tracker=none")
    shop.until_step(40)
    sweep.send_signal(signal.SIGINT)
    said = ended(sweep, code=1)
    assert "the same command continues" in said
    assert {state for _, state in elements(shop)} <= {"CANCELLED", "COMPLETED", "FAILED"}
    assert max(shop.steps()) < 400
    shop.run(*ARRAY, "tracker=none")
    assert models(shop) == expected


def test_a_point_that_fails_says_why_and_the_others_finish(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text("{no json\n")
    (tmp_path / "good.jsonl").write_text("".join(f'{{"text": "def name_{n}(): pass"}}\n' for n in range(999)))
    sources = f"data.source={tmp_path}/broken.jsonl,{tmp_path}/good.jsonl"
    words = ("train.steps=20", "parallel.shard=1", "tracker=none", *ARRAY[-3:])
    said = ended(shop.start("-m", sources, *words), code=1)
    assert re.search(r"x #\d .*failed .*broken.jsonl", said), said
    assert "1 of 2 points finished" in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("pool=here",), "pool.launcher 'here'"),
        (("pool=slurm", "pool.slots=1", "parallel.shard=2"), "needs 2 of its 1 slots"),
    ],
)
def test_what_cannot_be_an_element_is_said_before_anything_starts(
    slurm: Cluster, tokens: Path, words: tuple[str, ...], reason: str
) -> None:
    shop = Shop(tokens, slurm)
    assert reason in ended(shop.start(*SWEEP, "hydra/launcher=slurm", "tracker=none", *words), code=2)
