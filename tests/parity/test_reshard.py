"""A checkpoint of any layout resumes in any other: saved on each of four layouts, loaded on each of them."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch

from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.reader import load_full
from atelier.engine.config.run_file import RunFile
from tests.engine.trainings import TrainingSetup
from tests.forks import start_gang
from tests.parity.cases import layout, taught

STEP = 4
LAYOUTS = {
    "shard of 4": layout(shard=4),
    "pipeline x tensor": layout(pipeline=2, tensor=2),
    "replicate x context": layout(replicate=2, context=2),
    "interleaved pipeline x shard": layout(pipeline=2, schedule="interleaved", shard=2),
}
PAIRS = list(product(LAYOUTS, LAYOUTS))

pytestmark = pytest.mark.slow
ROLES = ("teacher", "open", "gated")


@pytest.fixture(scope="module")
def setups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingSetup]:
    """A house for each layout after 4 steps, and for each pair after 5, the last in the second's layout."""
    folder = tmp_path_factory.mktemp("reshard")
    found: dict[str, TrainingSetup] = {}
    plan: list[dict] = []
    for name, where in LAYOUTS.items():
        training_setup = found[name] = TrainingSetup(folder / name)
        run = training_setup.run_file(taught(training_setup, steps=STEP), layout=where)
        plan.append({"run": written(run, folder / f"{name}.json"), "from": ""})
    for source, target in PAIRS:
        training_setup = found[f"{source} -> {target}"] = TrainingSetup(folder / f"{source} to {target}")
        run = training_setup.run_file(taught(training_setup, steps=STEP + 1), layout=LAYOUTS[target])
        plan.append(
            {
                "run": written(run, folder / f"{source} to {target}.json"),
                "from": str(found[source].folder / "trajectory"),
                "to": str(training_setup.folder / "trajectory"),
                "again": str(training_setup.folder / "again"),
                "step": STEP,
            }
        )
    (folder / "plan.json").write_text(json.dumps(plan))
    start_gang("tests.parity.reshard", folder, 4, str(folder / "plan.json"))
    return found


def written(run: RunFile, path: Path) -> str:
    path.write_text(run.model_dump_json(by_alias=True))
    return str(path)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name)
def test_weights_and_optimiser_states_are_the_same_bits_in_the_other_layout(
    setups: dict[str, TrainingSetup], source: str, target: str
) -> None:
    for role in ROLES:
        saved = load_full(address(str(setups[source].folder / "trajectory" / role / "checkpoints"), STEP))
        again = load_full(address(str(setups[f"{source} -> {target}"].folder / "again" / role), STEP))
        assert saved.keys() == again.keys()
        assert {name.split(".")[0] for name in saved} == {"weights", "optimizer"}
        assert all(torch.equal(saved[name], again[name]) for name in saved), role


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda name: name)
def test_the_next_step_has_the_loss_that_it_has_in_the_first_layout(
    setups: dict[str, TrainingSetup], source: str, target: str
) -> None:
    for role in ROLES:
        straight = setups[f"{source} -> {source}"].curve(role)[-1]
        crossed = setups[f"{source} -> {target}"].curve(role)[-1]
        assert straight["step"] == crossed["step"] == STEP + 1
        for key in ("loss", "grad_norm"):
            assert abs(straight["values"][key] - crossed["values"][key]) < 1e-10, (role, key)
