"""A generator and its detectors in gangs, beside one process."""

from pathlib import Path

import pytest

from atelier.engine.config.error import StoppedError
from atelier.engine.config.parallel import Parallel
from tests.engine.trainings import AfterSteps, TrainingSetup
from tests.forks import start_gang
from tests.parity.cases import TRAININGS, Parity, apart, layout, quick_first

ROLES = ("generator", "now", "late", "both")
LAYOUTS: dict[str, Parallel] = {
    "shard": layout(shard=2),
    "tensor": layout(tensor=2),
    "context": layout(context=2),
    "pipeline": layout(pipeline=2),
}
QUICK = ("tensor",)


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Parity:
    return Parity(tmp_path_factory.mktemp("parity"))


@pytest.mark.parametrize("name", quick_first(LAYOUTS, {}, QUICK))
def test_in_every_layout_the_same_tokens_are_drawn_and_the_same_is_learned(parity: Parity, name: str) -> None:
    parity.check(name, "detecting", ROLES, {each: LAYOUTS[each] for each in QUICK}, LAYOUTS)


def test_a_checkpoint_of_one_process_goes_on_in_a_gang(parity: Parity, tmp_path: Path) -> None:
    """With the tokens that were drawn before it and are still to be learned from."""
    parts = TrainingSetup(tmp_path / "parts", parity.library.inputs)
    training = TRAININGS["detecting"](parts)
    with pytest.raises(StoppedError, match="step 3"):
        parts.train(training, stop=AfterSteps(tmp_path, 3))
    run = parts.run_file(training, layout=LAYOUTS["tensor"])
    (tmp_path / "run.json").write_text(run.model_dump_json(by_alias=True))
    start_gang("tests.parity.gang", tmp_path, 2, str(tmp_path / "run.json"))
    for name in ROLES:
        curve, weights = apart(parity.beside("detecting"), parts, name)
        assert curve < 1e-10 and weights < 1e-8
