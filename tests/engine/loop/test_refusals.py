"""Trainings that are refused before their first step."""

from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from tests.engine.trainings import TrainingSetup, role, student, train


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


def test_a_batch_that_the_micro_batch_does_not_divide_is_refused_with_one_that_fits(
    training_setup: TrainingSetup,
) -> None:
    with pytest.raises(ConfigError, match="micro_batch=2 would fit"):
        training_setup.train(training_setup.training({"model": role()}, train(8, micro_batch=3)))


def test_a_missing_input_is_named(training_setup: TrainingSetup) -> None:
    training_setup.inputs = {}
    with pytest.raises(ConfigError, match="no input 'tokens'"):
        training_setup.train(training_setup.training({"model": role()}, train(8)))


def test_a_teacher_that_starts_after_its_student_is_refused(training_setup: TrainingSetup) -> None:
    with pytest.raises(ConfigError, match="a teacher starts no later than its students"):
        training_setup.train(training_setup.training({"teacher": role(start=4), "s": student()}, train(8)))
