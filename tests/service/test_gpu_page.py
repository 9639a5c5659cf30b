"""The commands of docs/operate/gpus.md, on a made-up machine with two GPUs, whose ranks compute on CPUs."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import TOP, copied
from tests.flow.served import Served, wait_for
from tests.infra.launch.gpu_machine import machine, uuid

pytestmark = pytest.mark.service

PAGE = TOP / "docs/operate/gpus.md"
DEVICE = "def _device(layout: Parallel, gpu: str) -> torch.device:\n"
ON_CPUS = """
    if layout.device != "cpu":
        given = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
        assert layout.device == "cuda" and gpu == "h100" and len(given) == ranks_here(1), (layout, gpu, given)
    return torch.device("cpu")
"""


@pytest.fixture
def with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The command line of a machine with two GPUs. Its ranks check what they were given and use CPUs."""
    project = copied(tmp_path / "code")
    gang = project / "engine/parallel/gang.py"
    assert gang.read_text().count(DEVICE) == 1
    gang.write_text(gang.read_text().replace(DEVICE, DEVICE + ON_CPUS))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    served = Served(tmp_path / "store", project, machine(tmp_path, [uuid(1), uuid(2)]))
    yield served
    served.down()


def test_the_five_commands_of_the_page_train_on_the_gpus(with_gpus: Served) -> None:
    block = re.findall(r"(?ms)^```\n(.*?)^```", PAGE.read_text())[0]
    commands = [shlex.split(line.partition("#")[0])[1:] for line in block.splitlines()]
    plan, up, password, run, down = commands
    done = with_gpus.atelier(*plan)
    assert "note: pool here: 2 of 2 x NVIDIA H100" in done.stdout, done.stdout + done.stderr
    assert up == ["up"] and "starting a worker for the pool gpu" in with_gpus.up().stdout
    assert with_gpus.atelier(*password).stdout == f"atelier:{with_gpus.password}\n"
    done = with_gpus.atelier(*run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert models(with_gpus)[0]["provenance"]["layouts"][0]["shard"] == 2
    form = {"experiment": "tiny", "pool": "local", "train_seed": 5, "pool_tasks": ["train=gpu"]}
    more = ["parallel.shard=auto", "tracker=none", "train.steps=200"]
    parent = with_gpus.submit("pretrain", **form, overrides=more)
    wait_for(lambda: ranks_of_train(with_gpus), 240, "the ranks of a training from the page")
    asked = {"type": "CANCELLING", "name": "Cancelling"}
    with_gpus.api("POST", f"/flow_runs/{parent}/set_state", {"state": asked, "force": False})
    assert with_gpus.wait_final(parent)["type"] == "CANCELLED"
    again = with_gpus.submit("pretrain", **form, overrides=more)
    assert with_gpus.wait_final(again)["type"] == "COMPLETED", with_gpus.state(again)
    pools = {one["name"]: one["work_pool_name"] for one in with_gpus.children(again)}
    assert pools["train"] == "gpu" and {pool for name, pool in pools.items() if name != "train"} <= {"local"}
    assert len(models(with_gpus)) == 2
    assert down == ["down"] and with_gpus.atelier(*down).returncode == 0


def models(served: Served) -> list[dict[str, Any]]:
    paths = served.root.glob("model/*/record.json")
    return [json.loads(path.read_text()) for path in sorted(paths, key=lambda path: path.stat().st_mtime)]


def ranks_of_train(served: Served) -> bool:
    """Whether the ranks of a training have written a step."""
    return len([*served.root.glob("trajectory/*/metrics/*.jsonl")]) > 1 and bool(served.ranks())
