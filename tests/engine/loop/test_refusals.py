"""Trainings that are refused before their first step."""

from pathlib import Path

import pytest

from atelier.engine.checkpoint import commit
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts
from atelier.engine.config.router.topk import TopK
from atelier.engine.extensions.sites import checks
from tests.engine.trainings import AfterSteps, TrainingSetup, model, role, student, train


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
    with pytest.raises(ConfigError, match="a teacher must not start later than its students"):
        training_setup.train(training_setup.training({"teacher": role(start=4), "s": student()}, train(8)))


def test_an_automatic_micro_batch_of_long_rows_tears_no_group_that_competes(
    training_setup: TrainingSetup, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 12 rows of 1,024 tokens 6 would fit a micro-batch, and 4 compete."""
    experts = Experts(router=TopK(capacity=1.0), group=4)
    shape = model(16, num_layers=1, num_experts=2, experts=experts)
    how = train(1, global_batch=12, micro_batch="auto", sequence=1024)
    training_setup.train(training_setup.training({"model": role(shape=shape)}, how))
    assert '"micro_batch": 4,' in capsys.readouterr().out


LINK = {"rows": {"a": 2, "b": 2}, "every": 4, "site": "a"}


def test_what_sites_do_not_exchange_is_refused_by_run_files_as_by_the_plan(
    training_setup: TrainingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of models that the plan's check does not know when their weights are made."""
    shape = model(16, num_experts=2, experts=Experts(router=TopK(balance="bias")))
    how = train(8, micro_batch=1, link={**LINK, "mailbox": str(tmp_path / "mail")})
    training = training_setup.training({"model": role(shape=shape)}, how)
    with pytest.raises(ConfigError, match=r"roles.model.model.experts.router.balance: bias"):
        training_setup.train(training)
    monkeypatch.setattr(checks, "_check_exchanged", lambda *_: None)
    stop = AfterSteps(training_setup.folder, 8)  # not to wait for b
    with pytest.raises(ConfigError, match=r"train.link: the model's .*router.bias.* are buffers"):
        training_setup.train(training, stop=stop)
    assert not (tmp_path / "mail").exists()


def test_a_checkpoint_that_could_not_be_read_back_ends_the_training_at_its_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = TrainingSetup(tmp_path)
    monkeypatch.setattr(commit, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"parallel: 1 ranks write a manifest of .* MB, but at most"):
        setup.train(setup.training({"teacher": role()}, train(8, checkpoint_every=2)))
    assert setup.steps("teacher") == []
