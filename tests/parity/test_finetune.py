"""Fine-tuning in layouts of two and four, beside one process: draws, controls from random weights, low-rank
additions and soft prompts, on models of several kinds. A batch of three rows is one that no layout divides.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.mixture import Stream
from atelier.engine.config.model.encdec import EncDec
from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Trainable
from atelier.engine.config.run_file import Training
from tests.engine.labelled import labelled_setup
from tests.engine.trainings import VOCAB, TrainingSetup, role, train
from tests.forks import start_gang
from tests.parity.cases import apart, layout

pytestmark = pytest.mark.slow

STEPS = 10
# at 2e-2 one process in float32 drifts from itself in float64 by up to 6e-5: that is the rate, not the layout
RATES = {"fp64": 2e-2, "fp32": 5e-3}
SHAPE: dict[str, Any] = {"num_layers": 4, "hidden": 32, "num_heads": 4, "vocab": VOCAB}
CHOOSING = {"group": 2, "router": {"kind": "expert_choice", "sees_future": True}}
SHAPES: dict[str, ModelSpec] = {
    "dense": GPT(**SHAPE, num_kv_heads=2, dropout=0.1),
    "experts": GPT(**SHAPE, num_experts=4, experts_per_token=2),
    "competing": GPT.model_validate(SHAPE | {"num_experts": 4, "experts": CHOOSING}),
    "encdec": EncDec.model_validate(SHAPE | {"num_layers": 2}),
    "ernie": Ernie(**SHAPE, nlg=Net(num_layers=1, hidden=16, num_heads=2)),
}
# no two tokens have equal states: of equals that compete for an expert, rounding would choose one
PROMPTS = [f"{chr(97 + n)}{'zy' * (1 + n % 3)}" for n in range(24)]
WAYS: dict[str, dict[str, Any]] = {
    "tuned": {"init": "base"},
    "scratch": {},
    "lora": {"init": "base", "trainable": Trainable(kind="lora", rank=4)},
}
TWO: dict[str, Parallel] = {
    "tensor": layout(tensor=2),
    "shard": layout(shard=2),
    "pipeline": layout(pipeline=2),
    "replicate": layout(replicate=2),
    "context": layout(context=2),
    "expert": layout(expert=2),
    "tensor, whole sequences": layout(tensor=2, sequence_parallel=False),
    "shard, zero 1": layout(shard=2, zero=1),
    "pipeline, interleaved": layout(pipeline=2, schedule="interleaved"),
    "recompute": layout(shard=2, recompute="full"),
}
FOUR: dict[str, Parallel] = {
    "tensor x shard": layout(tensor=2, shard=2),
    "pipeline x tensor": layout(pipeline=2, tensor=2),
    "pipeline x expert": layout(pipeline=2, expert=2),
    "shard of 4": layout(shard=4),
    "pipeline of 4": layout(pipeline=4),
}
EXPERTS = ("experts", "competing")
REFUSED = {  # by the checks of the plan
    *((kind, name) for kind in SHAPES for name in ("expert", "pipeline x expert") if kind not in EXPERTS),
    *((kind, "context") for kind in ("encdec", "ernie", "competing")),
    *(("competing", name) for name in (*TWO, *FOUR) if "tensor" in name),  # they pad rows
}


def tuning(setup: TrainingSetup, shape: ModelSpec, way: str, **how: Any) -> Training:
    """Ten steps of three rows each, on 15 examples: no step has one of them twice."""
    given = WAYS[way]
    how = {"precision": "fp64", "global_batch": 3, "micro_batch": "auto", "sequence": 32} | how
    spec = role(shape=shape, lr=RATES[how["precision"]], seed_name="tuned", **given)
    settings = train(STEPS, **how)
    members = {way: setup.member(way, spec, STEPS, init=given.get("init", ""))}
    stream = Stream(input="labels", kind="examples", num_examples=15)
    return Training(members=members, streams=(stream,), train=settings)


class Tuned:
    """The trainings of one shape in one process and in gangs."""

    def __init__(self, folder: Path, shape: ModelSpec) -> None:
        self.folder, self.shape = folder, shape
        self.setups: dict[tuple[str, str], TrainingSetup] = {}

    @cached_property
    def base(self) -> TrainingSetup:
        return labelled_setup(self.folder / "base", self.shape, PROMPTS, file_bytes=20_000)

    def ways(self) -> list[str]:
        return [way for way in WAYS if way != "lora" or not isinstance(self.shape, Ernie)]

    def alone(self, precision: str) -> TrainingSetup:
        """After the trainings in one process, from a model in several files."""
        key = ("alone", precision)
        if key not in self.setups:
            setup = self.setups[key] = TrainingSetup(self.folder / f"alone-{precision}", self.base.inputs)
            setup.train(*(tuning(setup, self.shape, way, precision=precision) for way in self.ways()))
        return self.setups[key]

    def gang(self, layouts: dict[str, Parallel], precision: str) -> None:
        """Run them in these layouts, in one gang."""
        paths = [str(self.write(name, where, precision)) for name, where in layouts.items()]
        start_gang("tests.parity.gang", self.folder, next(iter(layouts.values())).ranks, *paths)

    def write(self, name: str, where: Parallel, precision: str) -> Path:
        setup = TrainingSetup(self.folder / f"{name}-{precision}", self.base.inputs)
        setup.folder.mkdir()
        self.setups[name, precision] = setup
        trainings = [tuning(setup, self.shape, way, precision=precision) for way in self.ways()]
        run = setup.run_file(*trainings, layout=where)
        (setup.folder / "run.json").write_text(run.model_dump_json(by_alias=True))
        return setup.folder / "run.json"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tuned]:
    return {name: Tuned(tmp_path_factory.mktemp(name), shape) for name, shape in SHAPES.items()}


def cases() -> list[tuple[str, str]]:
    """Every layout with every kind of model that can have it."""
    return [(kind, name) for kind in SHAPES for name in (*TWO, *FOUR) if (kind, name) not in REFUSED]


def of_kind(kind: str, layouts: dict[str, Parallel]) -> dict[str, Parallel]:
    return {name: where for name, where in layouts.items() if (kind, name) not in REFUSED}


@pytest.mark.parametrize(("kind", "name"), cases())
def test_fine_tuning_in_any_layout_has_the_losses_and_weights_of_one_process(
    tuned: dict[str, Tuned], kind: str, name: str
) -> None:
    mine = tuned[kind]
    if (name, "fp64") not in mine.setups:
        mine.gang(of_kind(kind, TWO if name in TWO else FOUR), "fp64")
    for way in mine.ways():
        losses, weights = apart(mine.alone("fp64"), mine.setups[name, "fp64"], way)
        assert losses < 1e-10 and weights < 1e-8, (way, losses, weights)


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_in_float32_the_losses_agree_to_1e_5(tuned: dict[str, Tuned], kind: str) -> None:
    mine = tuned[kind]
    mine.gang(of_kind(kind, FOUR), "fp32")
    for way in mine.ways():
        one = [line["values"]["loss"] for line in mine.alone("fp32").curve(way)]
        for name in of_kind(kind, FOUR):
            other = [line["values"]["loss"] for line in mine.setups[name, "fp32"].curve(way)]
            assert other == pytest.approx(one, abs=1e-5), (way, name)
