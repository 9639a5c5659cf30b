"""Every mesh axis alone and in products, against one process, in float64 (losses and gradient norms to 1e-10,
weights after 10 steps to 1e-8): dropout, students and gates included. One gang serves all layouts of its
size.
"""

from pathlib import Path

import pytest

from engine.spec.parallel import Axes, Parallel
from tests.parity.cases import Parity, layout

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
    "students sharded beside a split teacher": (layout(pipeline=2, tensor=2, roles=OWN), "taught"),
    "students split otherwise": (
        layout(
            context=2,
            tensor=2,
            roles={"open": Axes(shard=2, tensor=2), "gated": Axes(context=2, replicate=2)},
        ),
        "taught",
    ),
}
EIGHT = {
    "pipeline x shard x tensor": (layout(pipeline=2, shard=2, tensor=2), "taught"),
    "pipeline x replicate x shard": (layout(pipeline=2, replicate=2, shard=2), "taught"),
    "shard x context x tensor": (layout(shard=2, context=2, tensor=2), "taught"),
    "pipeline x context x tensor": (layout(pipeline=2, context=2, tensor=2), "taught"),
    "shard x expert x tensor": (layout(shard=2, expert=2, tensor=2), "mixed"),
    "pipeline x shard x expert": (layout(pipeline=2, shard=2, expert=2), "mixed"),
}
SIZES = {"two": TWO, "four": FOUR, "eight": EIGHT}
ROLES = {"taught": ("teacher", "open", "gated"), "mixed": ("moe", "dense"), "learned": ("gpt2",)}


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    return Parity(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="module")
def two(parity: Parity) -> Parity:
    parity.run({f"two, {name}": case for name, case in TWO.items()})
    return parity


@pytest.fixture(scope="module")
def four(parity: Parity) -> Parity:
    parity.run({f"four, {name}": case for name, case in FOUR.items()})
    return parity


@pytest.fixture(scope="module")
def eight(parity: Parity) -> Parity:
    parity.run({f"eight, {name}": case for name, case in EIGHT.items()})
    return parity


@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, cases in SIZES.items() for name in cases], ids=lambda each: each
)
def test_a_layout_gives_what_one_process_gives(request: pytest.FixtureRequest, size: str, name: str) -> None:
    parity: Parity = request.getfixturevalue(size)
    _, training = SIZES[size][name]
    for role in ROLES[training]:
        curve, weights = parity.apart(f"{size}, {name}", role)
        assert curve < 1e-10, role
        assert weights < 1e-8, role


def test_a_teacher_forwards_once_a_micro_batch_whatever_the_layout(four: Parity) -> None:
    for name, (where, training) in FOUR.items():
        if training == "taught":
            forwards = four.houses[f"four, {name}"].summary("teacher")["forwards"]
            assert forwards == 10 * 8 // where.axes.data


@pytest.mark.parametrize("axes", [{"tensor": 2}, {"pipeline": 2}, {"pipeline": 2, "schedule": "zb"}])
def test_a_teacher_ends_with_the_same_bits_with_and_without_students(
    two: Parity, tmp_path: Path, axes: dict
) -> None:
    alone = Parity.__new__(Parity)
    alone.folder, alone.houses = tmp_path, {}
    where: Parallel = layout(**axes)
    alone.run({"alone": (where, "alone")})
    name = next(name for name, (other, training) in TWO.items() if other == where and training == "taught")
    assert alone.houses["alone"].weights("teacher") == two.houses[f"two, {name}"].weights("teacher")
    assert alone.houses["alone"].curve("teacher") == two.houses[f"two, {name}"].curve("teacher")
