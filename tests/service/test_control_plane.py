"""A control plane: the wheel in an environment without torch. It plans every experiment, prepares data, and
submits to a worker whose environment has torch.
"""

import json
import re
import subprocess

import pytest

from atelier.flows.run.catalog import CONF, flow_names
from atelier.infra.code.provenance import INSTALL
from tests.environments import install, wheel, without_torch
from tests.flow.served import Served, wait_for
from tests.flow.small import OPEN

pytestmark = [pytest.mark.service, pytest.mark.slow]

TINY = ("experiment=tiny", "tracker=none", "train.steps=8")
PLANS = """
import json, sys
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import make_plan
from atelier.infra.store.store import Store, default_root
found = {}
for words in json.loads(sys.argv[1]):
    plan = make_plan(compose(words[0], words[1:]), Store(default_root()))
    plan.check()
    found[" ".join(words)] = len(plan.nodes)
assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Served:
    base = tmp_path_factory.mktemp("control")
    python = without_torch(base / "env")
    install(base / "env", str(wheel(base / "wheels")))
    (base / "project").mkdir()
    return Served(base / "store", base / "project", python=str(python))


def experiments() -> list[list[str]]:
    """The command of each conf/experiment in its own comment, with the first point of a sweep; and every flow
    that needs no model at the size of `experiment=tiny`.
    """
    lines = [path.read_text().splitlines()[1] for path in sorted((CONF / "experiment").glob("*.yaml"))]
    commands = [re.split(r" {2,}", line.removeprefix("# atelier "))[0].split() for line in lines]
    found = [
        [re.sub(r"(=[^,\[\]]*),.*", r"\1", word) for word in words if word not in ("plan", "-m")]
        for words in commands
    ]
    alone = [flow for flow in flow_names() if "???" not in (CONF / f"{flow}.yaml").read_text()]
    return found + [[flow, OPEN[0]] for flow in alone]


def flows_of(stack: Served, deployments: list[dict[str, str]]) -> list[dict[str, str]]:
    """The flows that have a form."""
    wanted = {"flows": {"id": {"any_": [one["flow_id"] for one in deployments]}}}
    return stack.api("POST", "/flows/filter", wanted)


def test_it_has_no_torch_and_says_so(control: Served) -> None:
    done = subprocess.run(
        [control.python, "-c", "import torch"], env=control.environment, capture_output=True
    )
    assert b"No module named 'torch'" in done.stderr
    about = control.atelier("versions", "--json")
    assert about.returncode == 0, about.stderr
    found = json.loads(about.stdout)
    assert found["commit"] and "torch" not in found["libraries"] and found["libraries"]["atelier-lm"]
    checked = {row["check"]: row for row in json.loads(control.atelier("doctor", "--json").stdout)}
    assert checked["torch"]["state"] == "note" and checked["versions"]["state"] != "broken"


def test_it_plans_every_experiment(control: Served) -> None:
    words = experiments()
    assert len({each[1] for each in words}) >= len([*(CONF / "experiment").glob("*.yaml")])
    done = subprocess.run(
        [control.python, "-c", PLANS, json.dumps(words)], cwd=control.project, env=control.environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    planned = json.loads(done.stdout)
    print(planned)
    assert len(planned) == len({" ".join(each) for each in words}) and min(planned.values()) >= 2


def test_it_prepares_data_and_names_the_extra_before_a_training(control: Served) -> None:
    done = control.atelier("corpus", "experiment=tiny", "tracker=none")
    assert done.returncode == 0, done.stdout + done.stderr
    refused = control.atelier("pretrain", *TINY)
    assert refused.returncode == 2 and INSTALL in refused.stderr and "Traceback" not in refused.stderr
    assert not (control.root / "trajectory").exists()


def test_a_worker_with_torch_trains_what_it_submits(control: Served) -> None:
    said = control.up()
    worker = Served(control.root)  # of the checkout, with this interpreter
    try:
        assert "no worker for the pool local" in said.stdout
        deployed = control.api("POST", "/deployments/filter", {})
        assert {*flow_names()} <= {one["name"] for one in flows_of(control, deployed)}
        for words in (("list",), ("runs",), ("status",)):
            done = control.atelier(*words)
            assert done.returncode == 0, done.stderr
        worker.add_worker("local")
        path = "/work_pools/local/workers/filter"
        wait_for(lambda: control.api("POST", path, {}), 120, "a worker of the pool local")
        submitted = control.atelier("pretrain", *TINY, "pool=local")
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    finally:
        control.workers += worker.workers
        control.down()
    (record,) = control.root.glob("model/*/record.json")
    kept = json.loads(record.read_bytes())["provenance"]["versions"]
    assert kept["torch"] and kept["atelier-lm"]
