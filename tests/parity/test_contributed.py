"""A contributed model kind (tests/parity/contributed): its own blocks, an encoder input of another length, an
auxiliary loss, and weights without gradients, by spec, module, rows and yaml alone.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from tests.checkout import TOP, copied, python_path
from tests.engine.row_inputs import harbour
from tests.engine.trainings import TrainingSetup
from tests.parity.cases import apart

ONE: dict[str, Any] = {"shard": 1, "threads": 1, "compile": "none", "device": "cpu"}
TWO: dict[str, dict[str, Any]] = {
    "tensor": {"tensor": 2},
    "tensor, whole sequences": {"tensor": 2, "sequence_parallel": False},
    "shard": {"shard": 2},
    "shard, zero 1": {"shard": 2, "zero": 1},
    "context": {"context": 2},
    "expert": {"expert": 2},
    "recompute": {"shard": 2, "recompute": "full"},
    "pipeline": {"pipeline": 2},
    "pipeline, interleaved": {"pipeline": 2, "schedule": "interleaved"},
    "pipeline, zero-bubble": {"pipeline": 2, "schedule": "zb"},
    "pipeline, recompute": {"pipeline": 2, "recompute": "full"},
}
BIASES = ("blocks.2.mlp.bias", "blocks.3.mlp.bias")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code with the contributed files added."""
    target = copied(tmp_path_factory.mktemp("contributed"))
    added = Path(__file__).with_name("contributed")
    for path in (path for path in added.rglob("*") if path.suffix in (".py", ".yaml")):
        place = target / path.relative_to(added)
        assert not place.exists(), f"{place} would be changed, not added"
        place.write_bytes(path.read_bytes())
    return target


class Gangs:
    """Runs cases of tests/parity/pairs.py with the copied code."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout, self.folder = checkout, folder
        self.inputs = folder / "inputs.json"
        self.inputs.write_text(json.dumps(harbour(folder / "harbour")))

    def run(self, world: int, cases: dict[str, dict[str, Any]]) -> None:
        name = uuid.uuid4().hex[:8]
        file = self.folder / f"cases-{name}.json"
        file.write_text(json.dumps(cases))
        env = os.environ | {
            "PYTHONPATH": python_path(self.checkout) + os.pathsep + str(TOP),
            "ATELIER_RENDEZVOUS": f"file://{self.folder}/meeting-{name}",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(world),
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-m", "tests.parity.pairs", str(self.folder), str(self.inputs), str(file)]
        logs = [self.folder / f"{name}-{rank}.log" for rank in range(world)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("w") as said:
                more = {"env": env | {"RANK": str(rank)}, "cwd": self.folder}
                processes.append(subprocess.Popen(command, stdout=said, stderr=said, **more))
        codes = [process.wait(timeout=600) for process in processes]
        assert not any(codes), "\n".join(log.read_text()[-3000:] for log in logs)

    def setup(self, name: str) -> TrainingSetup:
        return TrainingSetup(self.folder / name, {"tokens": ""})


@pytest.fixture(scope="module")
def gangs(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Gangs:
    """One process has trained it in `alone`; a gang of two in every layout."""
    found = Gangs(checkout, tmp_path_factory.mktemp("gangs"))
    found.run(1, {"alone": {"layout": ONE}})
    found.run(2, {name: {"layout": ONE | axes} for name, axes in TWO.items()})
    return found


@pytest.mark.parametrize("name", TWO)
def test_the_contributed_model_trains_as_in_one_process(gangs: Gangs, name: str) -> None:
    curve, weights = apart(gangs.setup("alone"), gangs.setup(name), "pair")
    assert curve < 1e-10 and weights < 1e-8


def test_its_auxiliary_loss_is_logged_and_its_balance_moves_weights_that_no_gradient_moves(
    gangs: Gangs,
) -> None:
    alone = gangs.setup("alone")
    assert all(line["values"]["aux/z"] > 0 for line in alone.curve("pair"))
    weights = load(alone.weights("pair"))
    assert all(weights[name].abs().max() > 0 for name in BIASES)


def test_a_training_that_was_stopped_goes_on_to_the_same_bits_also_in_another_layout(gangs: Gangs) -> None:
    for folder in ("resumed", "other"):
        gangs.run(1, {"begun": {"layout": ONE, "steps": 4, "keep": True, "folder": folder}})
    gangs.run(1, {"resumed": {"layout": ONE}})
    gangs.run(2, {"other": {"layout": ONE | TWO["pipeline"]}})
    alone, resumed = (load(gangs.setup(name).weights("pair")) for name in ("alone", "resumed"))
    assert all(torch.equal(alone[name], resumed[name]) for name in alone)
    curve, weights = apart(gangs.setup("alone"), gangs.setup("other"), "pair")
    assert curve < 1e-10 and weights < 1e-8


def test_where_only_additions_are_trained_the_base_keeps_its_weights_without_gradient_too(
    gangs: Gangs,
) -> None:
    gangs.run(1, {"additions": {"layout": ONE, "trainable": {"kind": "lora", "rank": 2}}})
    weights = load(gangs.setup("additions").weights("pair"))
    assert all(weights[name].abs().max() == 0 for name in BIASES)


def test_it_is_pretrained_by_the_command_and_generated_from(checkout: Path, tmp_path: Path) -> None:
    env = os.environ | {
        "PYTHONPATH": python_path(checkout),
        "ATELIER_ROOT": str(tmp_path / "store"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def atelier(*words: str) -> str:
        command = [sys.executable, "-m", "atelier", *words]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    words = ("experiment=tiny", "model=pair_tiny", "objective=rejoin", "name=pair")
    atelier("pretrain", *words)
    assert "pair" in atelier("list", "model")
    assert "reuse" in atelier("plan", "pretrain", *words)
    assert atelier("generate", "pair", "--prompt", "def ", "--max-tokens", "8").strip()
