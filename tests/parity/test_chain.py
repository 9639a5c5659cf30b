"""Titan's family in layouts of four: a teacher with all objectives, an assistant, its students. A role that
starts or ends does not change the bits of the others.
"""

import pytest

from tests.engine.trainings import TrainingSetup
from tests.parity.cases import CHAIN_STEPS, Parity, layout

pytestmark = pytest.mark.slow

LAYOUTS = {
    "shard x tensor": layout(shard=2, tensor=2),
    "pipeline x tensor": layout(pipeline=2, tensor=2),
}
NUMBERS = (0, 1, 3)


@pytest.fixture(scope="module")
def setups(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainingSetup]:
    """By layout and number of students."""
    found = Parity(tmp_path_factory.mktemp("chain"))
    found.run({f"{name}, {n}": (where, f"chain of {n}") for name, where in LAYOUTS.items() for n in NUMBERS})
    return found.setups


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_teacher_has_the_same_bits_with_0_1_and_3_students_of_its_assistant(
    setups: dict[str, TrainingSetup], name: str
) -> None:
    alone = setups[f"{name}, 0"]
    for number in NUMBERS[1:]:
        beside = setups[f"{name}, {number}"]
        assert beside.weights("reader") == alone.weights("reader")
        assert beside.curve("reader") == alone.curve("reader")


@pytest.mark.parametrize("name", LAYOUTS)
def test_who_comes_and_leaves_changes_nothing_for_assistant_and_student(
    setups: dict[str, TrainingSetup], name: str
) -> None:
    one, three = setups[f"{name}, 1"], setups[f"{name}, 3"]
    for role in ("assistant", "early"):
        assert one.weights(role) == three.weights(role)
        assert one.curve(role) == three.curve(role)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_both_masks_share_one_forward_a_micro_batch(
    setups: dict[str, TrainingSetup], name: str
) -> None:
    """Of eight samples a step; the micro-batches are of two samples on each rank that reads."""
    for number in NUMBERS:
        summary = setups[f"{name}, {number}"].summary("reader")
        assert summary["forwards"] == CHAIN_STEPS * 8 // 2 // LAYOUTS[name].axes.data
