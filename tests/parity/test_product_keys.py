"""Models with product-key memories in layouts of two and four, beside one process: dropout, Muon, low-rank
additions beside frozen memories, experts in the same block, a student.
"""

from typing import Any

import pytest

from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.model.gpt import Multipliers
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Trainable
from atelier.engine.config.run_file import Training
from tests.engine.trainings import TrainingSetup, role, student, train
from tests.parity import cases
from tests.parity.cases import HOW, Parity, layout, net, quick_first

STEPS = 6
ROLES = ("adamw", "muon", "lora", "pupil")
TWO: dict[str, Parallel] = {
    "tensor": layout(tensor=2),
    "shard": layout(shard=2),
    "pipeline": layout(pipeline=2),
    "replicate": layout(replicate=2),
    "context": layout(context=2),
    "shard, zero 1": layout(shard=2, zero=1),
    "tensor, whole sequences": layout(tensor=2, sequence_parallel=False),
    "pipeline, interleaved": layout(pipeline=2, schedule="interleaved"),
    "pipeline, zero-bubble": layout(pipeline=2, schedule="zb"),
    "recompute full": layout(shard=2, recompute="full"),
    "recompute selective": layout(tensor=2, recompute="selective", recompute_every=2),
    "expert": layout(expert=2),
}
FOUR: dict[str, Parallel] = {
    "shard x tensor": layout(shard=2, tensor=2),
    "pipeline x tensor": layout(pipeline=2, tensor=2),
    "context x tensor": layout(context=2, tensor=2),
}
QUICK = ("tensor",)


def keys(*blocks: int, **more: Any) -> ProductKeyMemory:
    sizes: dict[str, Any] = {"keys": 6, "heads": 2, "per_token": 4, "width": 8}
    return ProductKeyMemory(blocks=blocks, **(sizes | more))


def remembering(training_setup: TrainingSetup) -> Training:
    half = Multipliers(residual=0.5)
    mixed = net(num_experts=4, memory=keys(0, 3, query_norm=False), multipliers=half)
    roles = {
        "adamw": role(shape=net(dropout=0.1, memory=keys(1, 3)), lr=1e-2),
        "muon": role(shape=mixed).model_copy(update={"optim": Muon(lr=1e-3, matrix_lr=1e-2)}),
        "lora": role(shape=net(memory=keys(2)), lr=1e-2, trainable=Trainable(kind="lora", rank=4)),
        "pupil": student(shape=net(2, 16, memory=keys(0)), teacher="adamw"),
    }
    return training_setup.training(roles, train(STEPS, **(HOW | {"micro_batch": 2})))


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    return Parity(tmp_path_factory.mktemp("memories"))


@pytest.fixture(scope="module", autouse=True)
def known() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cases.TRAININGS, "remembering", remembering)
        yield


@pytest.mark.parametrize("name", quick_first(TWO, FOUR, QUICK))
def test_every_layout_trains_as_one_process_does(gangs: Parity, name: str) -> None:
    gangs.check(name, "remembering", ROLES, {each: TWO[each] for each in QUICK}, TWO, FOUR)
