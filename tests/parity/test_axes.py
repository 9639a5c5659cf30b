"""Every mesh axis alone and in products, against one process, in float64 (losses and gradient norms to 1e-10,
weights after 4 steps to 1e-8): dropout, students and gates included. One gang serves all layouts of its
size.
"""

from pathlib import Path

import pytest

from atelier.engine.config.parallel import Axes, Parallel
from tests.engine.trainings import TrainingSetup, train
from tests.parity.cases import HOW, PAIRED, ROWS, STEPS, Parity, apart, layout, lessons, readers
from tests.parity.drawn import drawn

TWO = {
    "replicate": (layout(replicate=2), "taught"),
    "shard": (layout(shard=2), "taught"),
    "shard, zero 1": (layout(shard=2, zero=1), "taught"),
    "shard, zero 2": (layout(shard=2, zero=2), "taught"),
    "context": (layout(context=2), "taught"),
    "tensor": (layout(tensor=2), "taught"),
    "tensor, whole sequences": (layout(tensor=2, sequence_parallel=False), "taught"),
    "pipeline": (layout(pipeline=2), "taught"),
    "pipeline, unequal stages": (layout(pipeline=2, stages=(3, 1)), "taught"),
    "pipeline, interleaved": (layout(pipeline=2, schedule="interleaved"), "taught"),
    "pipeline, zero-bubble": (layout(pipeline=2, schedule="zb"), "taught"),
    "expert": (layout(expert=2), "mixed"),
    "experts under tensor": (layout(tensor=2), "mixed"),
    "learned positions under tensor": (layout(tensor=2), "learned"),
    "learned positions under pipeline": (layout(pipeline=2), "learned"),
    "attention under tensor": (layout(tensor=2), "attended"),
    "attention under context": (layout(context=2), "attended"),
    "attention under shard": (layout(shard=2), "attended"),
    "attention under pipeline": (layout(pipeline=2), "attended"),
    "attention dealt out anew": (
        layout(context=2, roles={name: Axes(tensor=2) for name in ("stacked", "bare", "hidden")}),
        "attended",
    ),
    "a part of the weights under pipeline": (layout(pipeline=2), "tuned"),
    "a part of the weights under interleaved pipeline": (layout(pipeline=2, schedule="interleaved"), "tuned"),
    "a part of the weights under zero-bubble": (layout(pipeline=2, schedule="zb"), "tuned"),
    "a model from elsewhere under tensor": (layout(tensor=2), "guests"),
    "a model from elsewhere under pipeline": (layout(pipeline=2), "guests"),
    "a model from elsewhere under shard": (layout(shard=2), "guests"),
    "nets under tensor": (layout(tensor=2), "universal"),
    "nets under pipeline": (layout(pipeline=2), "universal"),
    "nets under context": (layout(context=2), "universal"),
    "nets under shard": (layout(shard=2), "universal"),
    "all objectives under shard": (layout(shard=2), "reading"),
    "all objectives under tensor": (layout(tensor=2), "reading"),
    "all objectives under context": (layout(context=2), "reading"),
    "all objectives under pipeline": (layout(pipeline=2), "reading"),
    "heads of classes under zero-bubble": (layout(pipeline=2, schedule="zb"), "headed"),
    "recompute full": (layout(shard=2, recompute="full"), "taught"),
    "recompute selective": (layout(tensor=2, recompute="selective", recompute_every=2), "taught"),
}
OWN = {"open": Axes(shard=2), "gated": Axes(replicate=2)}
FOUR = {
    "replicate x shard": (layout(replicate=2, shard=2), "taught"),
    "shard x tensor": (layout(shard=2, tensor=2), "taught"),
    "shard x context": (layout(shard=2, context=2), "taught"),
    "context x tensor": (layout(context=2, tensor=2), "taught"),
    "pipeline x shard": (layout(pipeline=2, shard=2), "taught"),
    "pipeline x tensor": (layout(pipeline=2, tensor=2), "taught"),
    "pipeline x context": (layout(pipeline=2, context=2), "taught"),
    "pipeline of 4": (layout(pipeline=4), "taught"),
    "zero-bubble x tensor": (layout(pipeline=2, schedule="zb", tensor=2), "taught"),
    "interleaved x tensor": (layout(pipeline=2, schedule="interleaved", tensor=2), "taught"),
    "shard x expert": (layout(shard=2, expert=2), "mixed"),
    "expert x tensor": (layout(expert=2, tensor=2), "mixed"),
    "pipeline x expert": (layout(pipeline=2, expert=2), "mixed"),
    "context x expert": (layout(context=2, expert=2), "mixed"),
    "students sharded beside a split teacher": (layout(pipeline=2, tensor=2, roles=OWN), "paired"),
    "students split otherwise": (
        layout(
            context=2,
            tensor=2,
            roles={"open": Axes(shard=2, tensor=2), "gated": Axes(context=2, replicate=2)},
        ),
        "paired",
    ),
}
EIGHT = {
    "pipeline x shard x tensor": (layout(pipeline=2, shard=2, tensor=2), "taught"),
    "pipeline x replicate x context": (layout(pipeline=2, replicate=2, context=2), "taught"),
    "shard x context x tensor": (layout(shard=2, context=2, tensor=2), "taught"),
    "pipeline x context x tensor": (layout(pipeline=2, context=2, tensor=2), "taught"),
    "shard x expert x tensor": (layout(shard=2, expert=2, tensor=2), "mixed"),
    "pipeline x expert x tensor": (layout(pipeline=2, expert=2, tensor=2), "mixed"),
}
# drawn layouts, by ranks; two thirds compare states, one third rows of all kinds; test_products.py draws more
NUMBERS = {2: 6, 4: 9, 8: 3}


def others(ranks: int) -> dict[str, tuple[Parallel, str]]:
    """Students that lie otherwise than their teacher."""
    third = NUMBERS[ranks] // 3
    states = drawn(lessons(), train(**(HOW | PAIRED)), ranks=ranks, number=NUMBERS[ranks] - third, seed=ranks)
    rows = drawn(readers(), train(**(HOW | ROWS | {"micro_batch": 4})), ranks=ranks, number=third, seed=ranks)
    return {name: (where, "compared") for name, where in states.items()} | {
        name: (where, "classed") for name, where in rows.items()
    }


def first_split(cases: dict[str, tuple[Parallel, str]]) -> list[str]:
    """Of those that split their teacher's matrices the first of each training."""
    split = {name: training for name, (where, training) in cases.items() if where.tensor > 1}
    return [next(name for name in split if split[name] == training) for training in ("compared", "classed")]


DRAWN = {ranks: others(ranks) for ranks in NUMBERS}
TWO |= DRAWN[2]
FOUR |= DRAWN[4]
EIGHT |= DRAWN[8]
QUICK = {  # the rest is marked slow; replicas are in test_layouts.py
    *("shard", "context", "tensor", "pipeline", "pipeline, zero-bubble", "expert"),
    "pipeline x tensor",
    *first_split(DRAWN[2]),
    *first_split(DRAWN[4]),
    next(name for name, (where, _) in DRAWN[4].items() if where.tensor * where.pipeline == 4),
}
SIZES = {"two": TWO, "four": FOUR, "eight": EIGHT}
ROLES = {
    "attended": ("guide", "stacked", "bare", "hidden"),
    "taught": ("teacher", "open", "gated"),
    "paired": ("teacher", "open", "gated"),
    "mixed": ("moe", "dense"),
    "learned": ("gpt2", "muon", "lora"),
    "universal": ("ernie",),
    "tuned": ("net", "norm"),
    "guests": ("pupil", "tuned guest", "goes on"),
    "headed": ("deep",),
    "compared": tuple(lessons()),
    "reading": ("reader", "pupil"),
    "classed": ("reader", "pupil"),
}


class Gangs:
    """A gang for each size, and for what is slow another one; started when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.parity = Parity(folder)
        self.done: set[tuple[str, bool]] = set()

    def training_setup(self, size: str, name: str) -> TrainingSetup:
        """The house of a case after its training."""
        group = (size, name in QUICK)
        if group not in self.done:
            cases = {each: case for each, case in SIZES[size].items() if (each in QUICK) == group[1]}
            self.parity.run(cases)
            self.done.add(group)
        return self.parity.setups[name]


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Gangs:
    return Gangs(tmp_path_factory.mktemp("parity"))


CASES = [
    pytest.param(size, name, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for size, cases in SIZES.items()
    for name in sorted(cases, key=lambda name: name not in QUICK)
]


@pytest.mark.parametrize(("size", "name"), CASES)
def test_a_layout_gives_what_one_process_gives(gangs: Gangs, size: str, name: str) -> None:
    _, training = SIZES[size][name]
    for role in ROLES[training]:
        curve, weights = apart(gangs.parity.beside(training), gangs.training_setup(size, name), role)
        print(f"{name}: {role} {curve:.1e} apart, weights {weights:.1e}")
        assert curve < 1e-10, role
        assert weights < 1e-8, role


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in ("pipeline x tensor", "shard x tensor", "students split otherwise")
    ],
)
def test_a_teacher_forwards_once_a_micro_batch_whatever_the_layout(gangs: Gangs, name: str) -> None:
    where, _ = FOUR[name]
    summary = gangs.training_setup("four", name).summary("teacher")
    rows = 2 if name == "students split otherwise" else 1
    assert summary["forwards"] == STEPS * 4 // where.axes.data // rows


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    """The teacher without students, in three layouts of two."""
    found = Parity(tmp_path_factory.mktemp("without"))
    found.run({name: (TWO[name][0], "alone") for name in WITHOUT})
    return found


WITHOUT = ("tensor", "pipeline", "pipeline, zero-bubble")


@pytest.mark.parametrize("name", WITHOUT)
def test_a_teacher_ends_with_the_same_bits_with_and_without_students(
    gangs: Gangs, without: Parity, name: str
) -> None:
    with_students = gangs.training_setup("two", name)
    assert without.setups[name].weights("teacher") == with_students.weights("teacher")
    assert without.setups[name].curve("teacher") == with_students.curve("teacher")
