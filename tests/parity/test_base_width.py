"""Models with a base width (muP) in layouts of two, beside one process: each weight keeps its learning rate,
whoever holds it.
"""

from typing import Any

import pytest

from atelier.engine.config.experts import Experts
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.run_file import Training
from tests.engine.trainings import TrainingSetup, model, role, train
from tests.parity import cases
from tests.parity.cases import HOW, Parity, layout

TWO = {
    "tensor": layout(tensor=2),
    "shard": layout(shard=2),
    "pipeline": layout(pipeline=2),
    "expert": layout(expert=2),
}


def scaled(training_setup: TrainingSetup) -> Training:
    shape = model(32, 2, base_width=8, num_experts=4, experts=Experts(ffn=32, every=2), tied=False)
    by_muon = role(shape=shape).model_copy(update={"optim": Muon(lr=1e-2)})
    return training_setup.training(
        {"adamw": role(shape=shape, lr=1e-2), "muon": by_muon}, train(4, **HOW)
    )  # fmt: skip


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cases.TRAININGS, "scaled", scaled)
        yield Parity(tmp_path_factory.mktemp("scaled"))


@pytest.mark.parametrize("name", TWO)
def test_a_base_width_means_the_same_in_every_layout(parity: Parity, name: str) -> None:
    parity.check(name, "scaled", ("adamw", "muon"), TWO)
