"""A pool of Slurm that Prefect serves: runs of its page have their gangs as jobs, and a cancel there reaches
them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.infra.store.trajectory import checkpoint_steps
from tests.checkout import copied
from tests.flow.served import Served, running, wait_for
from tests.service.shop import PATIENCE_S, WORDS
from tests.service.slurm_cluster import Cluster, what_is_missing

pytestmark = [
    pytest.mark.root,
    pytest.mark.service,
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing() or "all is there"),
]

RUN = [*WORDS, "train.steps=300", "parallel.shard=2", "pool=slurm", "pool.slots=1", "pool.grace_s=8"]


@pytest.fixture
def served(slurm: Cluster, tmp_path: Path) -> Iterator[Served]:
    """A stack of a project whose pool of Slurm has a name, and a worker that serves it."""
    project = copied(tmp_path / "project")
    pool = project / "conf" / "pool" / "slurm.yaml"
    pool.write_text(pool.read_text() + "\nname: slurm\n")
    with running(tmp_path / "store", project, {"SLURM_CONF": slurm.environment["SLURM_CONF"]}) as stack:
        stack.add_worker("slurm")
        wait_for(lambda: stack.api("GET", "/work_pools/slurm")["status"] == "READY", 120, "the worker")
        yield stack


def jobs(slurm: Cluster) -> list[list[str]]:
    """State and number of nodes of the trainings' jobs, the newest last."""
    told = slurm.run("squeue", "--noheader", "--states=all", "--sort=i", "--format=%j %T %D").stdout
    return [line.split()[1:] for line in told.splitlines() if line.startswith("atelier-train ")]


def test_a_run_from_the_page_trains_on_two_nodes_is_cancelled_there_and_goes_on(
    served: Served, slurm: Cluster
) -> None:
    def steps() -> list[int]:
        places = served.root.glob("trajectory/*")
        return [step for place in places for step in checkpoint_steps(str(place))]

    run_id = served.submit("pretrain", overrides=RUN)
    wait_for(lambda: max(steps(), default=0) >= 20, PATIENCE_S, "a checkpoint")
    assert jobs(slurm)[-1] == ["RUNNING", "2"]
    served.api("POST", f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING"}})
    assert served.wait_final(run_id, PATIENCE_S)["type"] == "CANCELLED"
    wait_for(lambda: jobs(slurm)[-1][0] in ("CANCELLED", "COMPLETED", "FAILED"), 120, "the job's end")
    stood = max(steps())
    assert 20 <= stood < 300
    assert served.wait_final(served.submit("pretrain", overrides=RUN), PATIENCE_S)["type"] == "COMPLETED"
    lives = sorted(path.name for path in served.root.glob("trajectory/*/metrics/*"))
    assert lives[-1].split("-")[1] != lives[0].split("-")[1], "the second job went on where the first stood"
