"""Detectors that start later than their generator, continue after it, or train longer: the drawings of the
steps that they learn from are there, or are drawn again.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from atelier.engine.config.error import StoppedError
from atelier.engine.config.role import Role
from atelier.engine.loop.prefetch import Prefetcher, StepData
from tests.engine.extensions.detection.detection import (
    SIZES,
    STEPS,
    DetectedApart,
    detector,
    elsewhere,
    generator,
)
from tests.engine.row_inputs import harbour
from tests.engine.trainings import AfterSteps, TrainingSetup, train

KEPT = SIZES | {"checkpoint_every": 1, "keep": 99, "eval_every": STEPS}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return harbour(tmp_path_factory.mktemp("text"))


def trained(folder: Path, text: dict[str, str], roles: dict[str, Role], steps: int = STEPS) -> TrainingSetup:
    setup = TrainingSetup(folder, dict(text))
    setup.train(setup.training(roles, train(steps, **KEPT)))
    return setup


@pytest.mark.parametrize("delay", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_finished_generator_that_is_replayed_draws_what_it_drew(
    tmp_path: Path, text: dict[str, str], delay: int
) -> None:
    late = detector(delay, start=5)
    together = trained(tmp_path / "together", text, {"generator": generator(), "late": late})
    setup = trained(tmp_path / "after", text, {"generator": generator()})
    again = setup.member("generator", generator(), STEPS, mode="replay", output=False)
    resumed = setup.training({"generator": again, "late": late}, train(STEPS, **KEPT))
    assert setup.train_in_pieces(resumed, delay + 1)  # fewer would never get on
    assert setup.weights("late") == together.weights("late")
    assert setup.curve("late") == together.curve("late")


@pytest.mark.parametrize("come", [pytest.param(4, marks=pytest.mark.slow), 5])
def test_a_generator_that_came_too_far_alone_goes_back(
    tmp_path: Path, text: dict[str, str], come: int
) -> None:
    """From step 5 on it is, and was, trained with a role that learns its step 3 there."""
    roles = {"generator": generator(), "late": detector(2, start=5)}
    together = trained(tmp_path / "together", text, roles)
    setup = TrainingSetup(tmp_path / "after", dict(text))
    alone = setup.training({"generator": generator()}, train(STEPS, **KEPT))
    with pytest.raises(StoppedError, match=f"step {come}"):
        setup.train(alone, stop=AfterSteps(tmp_path, come))
    setup.train(setup.training(roles, train(STEPS, **KEPT)))
    for name in roles:
        assert setup.weights(name) == together.weights(name)
        assert setup.curve(name) == together.curve(name)


@pytest.mark.slow
def test_a_longer_training_goes_on(
    tmp_path: Path, text: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Where this one ended: its generator drew in its last steps, too."""
    roles = {"generator": generator(), "late": detector(3)}
    whole = trained(tmp_path / "whole", text, roles, steps=STEPS + 4)
    setup = trained(tmp_path / "parts", text, roles)
    capsys.readouterr()
    setup.train(setup.training(roles, train(STEPS + 4, **KEPT)))
    assert f'"resumed": {STEPS}}}' in capsys.readouterr().out
    for name in roles:
        assert setup.weights(name) == whole.weights(name)


def test_a_longer_training_goes_on_apart(tmp_path: Path, text: dict[str, str]) -> None:
    def sites(name: str) -> DetectedApart:
        return DetectedApart(tmp_path / name, text, students={"late": elsewhere(3)}, frozen=False)

    whole, parts = sites("whole"), sites("parts")
    whole.train(steps=STEPS + 4, keep=99)
    parts.train(keep=99)
    parts.train(steps=STEPS + 4, keep=99)
    for name, site in (("teacher", "a"), ("late", "b")):
        assert parts.setups[site].weights(name) == whole.setups[site].weights(name)


def test_rows_of_one_delay_are_made_once(
    tmp_path: Path, text: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many detect: beside the generator's, those of each delay."""
    made, make = Counter[int](), Prefetcher._make

    def counted(feed: Prefetcher, clock: int, places: np.ndarray | None) -> StepData:
        made[clock] += 1
        return make(feed, clock, places)

    monkeypatch.setattr(Prefetcher, "_make", counted)
    trained(tmp_path, text, {"generator": generator(), **{name: detector(2) for name in "xy"}})
    assert set(made) == {*range(STEPS)} and max(made.values()) == 2
