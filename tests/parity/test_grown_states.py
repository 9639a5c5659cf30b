"""Trainings that begin from a model with optimiser states, in layouts of two, beside one process: AdamW's and
Muon's, with experts, some weights without states.
"""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import save

from atelier.engine.config.conversions import OPTIMIZER, OPTIMIZER_KIND, keeps_states
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import OptimSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member, Training
from atelier.engine.io.artifact import open_input
from tests.engine.trainings import TrainingSetup, artifact, model_files, role, train
from tests.parity import cases
from tests.parity.cases import HOW, Parity, layout, net, quick_first

STEPS = 4
ROLES = ("adamw", "muon", "experts", "another", "without")
TWO: dict[str, Parallel] = {
    "shard": layout(shard=2),
    "tensor": layout(tensor=2),
    "pipeline": layout(pipeline=2),
    "expert": layout(expert=2),
    "shard, zero 1": layout(shard=2, zero=1),
    "replicate": layout(replicate=2),
}
QUICK = ("shard",)


def grown(setup: TrainingSetup, name: str, shape: GPT, optim: OptimSpec) -> str:
    """A model of random weights and states; the routers have none. The name of the input."""
    if name not in setup.inputs:
        generator = torch.Generator().manual_seed(3)

        def drawn(size: tuple[int, ...]) -> torch.Tensor:
            return 0.3 * torch.randn(size, generator=generator, dtype=torch.float64)

        files = model_files(
            {each: drawn(size) + (len(size) == 1) for each, size in shape.shapes().items()}, shape
        )
        states: dict[str, torch.Tensor] = {}
        for each, size in shape.shapes().items():
            if not each.endswith("router.weight"):
                states |= {
                    f"{each}.exp_avg": drawn(size),
                    f"{each}.exp_avg_sq": drawn(size).abs(),
                    f"{each}.momentum": drawn(size),
                    f"{each}.step": torch.tensor(50.0),
                }
        files[OPTIMIZER] = save(states)
        files[OPTIMIZER_KIND] = json.dumps(keeps_states(optim.as_identity())).encode()
        setup.inputs[name] = artifact(setup.folder / name, "model", files)
    return name


def going_on(setup: TrainingSetup) -> Training:
    dense, mixed = net(), net(num_experts=4)
    muon = Muon(lr=1e-3, matrix_lr=1e-2)
    plain, muonic = role(lr=1e-2), role(shape=dense).model_copy(update={"optim": muon})
    given = {
        "adamw": (role(shape=dense, lr=1e-2), "dense"),
        "muon": (muonic, "dense-muon"),
        "experts": (role(shape=mixed, lr=1e-2), "mixed"),
        "another": (muonic, "dense"),  # of which it takes none
    }
    members: dict[str, Role | Member] = {}
    for name, (spec, init) in given.items():
        optim = muon if "muon" in init else plain.optim
        members[name] = setup.member(name, spec, STEPS, init=grown(setup, init, spec.model, optim))
    if "bare" not in setup.inputs:
        source = open_input(setup.inputs["dense"])
        files = {
            each: source.file(each, setup.folder).read_bytes() for each in source.names() if each != OPTIMIZER
        }
        setup.inputs["bare"] = artifact(setup.folder / "bare", "model", files)
    members["without"] = setup.member("without", role(shape=dense, lr=1e-2), STEPS, init="bare")
    return setup.training(members, train(STEPS, **HOW))


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    return Parity(tmp_path_factory.mktemp("states"))


@pytest.fixture(scope="module", autouse=True)
def known() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cases.TRAININGS, "going on", going_on)
        yield


@pytest.mark.parametrize("name", quick_first(TWO, {}, QUICK))
def test_every_layout_goes_on_as_one_process_does(gangs: Parity, name: str) -> None:
    gangs.check(name, "going on", ROLES, {each: TWO[each] for each in QUICK}, TWO)


def test_the_states_matter_from_the_second_loss_on(gangs: Parity) -> None:
    alone = gangs.beside("going on")
    mine, other = ([line["values"]["loss"] for line in alone.curve(each)] for each in ("adamw", "without"))
    said = [alone.summary(each).get("began_with_states", False) for each in ROLES]
    assert said == [True, True, True, False, False]
    assert mine[0] == pytest.approx(other[0], abs=1e-2) and abs(mine[1] - other[1]) > 1e-3
