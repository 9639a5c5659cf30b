"""An encoder and a decoder in layouts of two and four, beside one process: rows of spans, of prefixes and
windows in one training, dropout, experts, a student.
"""

from functools import cached_property
from typing import Any

import pytest

from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.prefix import PrefixLM
from atelier.engine.config.objective.spans import Spans
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import Training
from tests.engine.row_inputs import VOCAB, harbour
from tests.engine.trainings import TrainingSetup, role, train
from tests.parity import cases
from tests.parity.cases import HOW, ROWS, Parity, layout, quick_first

STEPS = 4
ROLES = ("dense", "pupil", "tied", "mixed")
TWO: dict[str, Parallel] = {
    "tensor": layout(tensor=2),
    "shard": layout(shard=2),
    "pipeline": layout(pipeline=2),
    "replicate": layout(replicate=2),
    "shard, zero 1": layout(shard=2, zero=1),
    "tensor, whole sequences": layout(tensor=2, sequence_parallel=False),
    "pipeline, cut in the decoder": layout(pipeline=2, stages=(3, 1)),
    "pipeline, interleaved": layout(pipeline=2, schedule="interleaved"),
    "recompute full": layout(shard=2, recompute="full"),
    "recompute selective": layout(tensor=2, recompute="selective", recompute_every=2),
    "pipeline, recompute": layout(pipeline=2, recompute="full"),
    "expert": layout(expert=2),
}
FOUR: dict[str, Parallel] = {
    "shard x tensor": layout(shard=2, tensor=2),
    "pipeline x tensor": layout(pipeline=2, tensor=2),
    "pipeline x expert": layout(pipeline=2, expert=2),
    "pipeline of 4": layout(pipeline=4),
}
QUICK = ("shard",)
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "experts_per_token": 1,
    "experts": {"every": 2},
}


def net(**more: Any) -> EncDec:
    shape = {"num_layers": 2, "hidden": 32, "num_heads": 4, "head_dim": 12, "ffn": 64, "vocab": VOCAB}
    return EncDec.model_validate(shape | {"buckets": 8, "max_distance": 20} | more)


def encoded(training_setup: TrainingSetup) -> Training:
    own: dict[str, Any] = {
        "spans": Spans(encoder=24, rate=0.3, mean=1.5),
        "prefix": PrefixLM(encoder=16, weight=0.5, rows=0.5),
        "lm": LM(weight=0.3),
    }
    roles = {
        "dense": role(shape=net(dropout=0.1), objective=own, lr=1e-2),
        "tied": role(shape=net(tied=True, mlp="relu"), objective=own, lr=1e-2),
        "mixed": role(shape=net(**EXPERTS), objective=own),
        "pupil": role(shape=net(num_layers=1), objective=own | {"kd": Logits(weight=0.5)}, teacher="dense"),
    }
    return training_setup.training(roles, train(STEPS, **(HOW | ROWS)))


class Pairs(Parity):
    @cached_property
    def library(self) -> TrainingSetup:
        return TrainingSetup(self.folder / "library", harbour(self.folder / "harbour", sentinels=12))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module", autouse=True)
def known() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cases.TRAININGS, "encoded", encoded)
        patch.setattr(cases, "READING", (*cases.READING, "encoded"))
        yield


@pytest.mark.parametrize("name", quick_first(TWO, FOUR, QUICK))
def test_every_layout_trains_as_one_process_does(pairs: Pairs, name: str) -> None:
    pairs.check(name, "encoded", ROLES, {each: TWO[each] for each in QUICK}, TWO, FOUR)
