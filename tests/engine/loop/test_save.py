"""Retention of checkpoints: the newest, every n-th, the best by held-out loss, branch points."""

import shutil
from pathlib import Path

import pytest

from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.manifest import MANIFEST
from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.run_file import SegmentAddress, Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.config.train import Train
from atelier.engine.io.storage import TEMPORARY
from atelier.engine.loop.resume import checkpoints
from atelier.engine.loop.save import Retention, held_out_loss
from tests.engine.trainings import AfterSteps, TrainingSetup, role, student, train

STEPS = 16


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


def losses(training_setup: TrainingSetup, name: str) -> dict[int, float]:
    """The held-out loss of every step that has one."""
    return {
        line["step"]: line["values"]["eval/loss"]
        for line in training_setup.curve(name)
        if "eval/loss" in line["values"]
    }


def best(training_setup: TrainingSetup, name: str, num: int) -> set[int]:
    found = losses(training_setup, name)
    return set(sorted(found, key=found.__getitem__)[:num])


def uneven() -> dict:
    """A teacher with a student whose losses fall first and rise when the rate has become too high."""
    rising = Schedule(kind="constant", warmup=STEPS)
    return {"teacher": role(lr=1.0, schedule=rising), "s": student(lr=1.0, schedule=rising)}


def test_every_nth_checkpoint_stays_for_good_beside_the_newest(training_setup: TrainingSetup) -> None:
    training_setup.train(
        training_setup.training({"model": role()}, train(STEPS, checkpoint_every=2, keep=2, keep_every=4))
    )
    assert training_setup.steps("model") == [4, 8, 12, 14, 16]


def test_every_nth_and_the_best_survive_the_end_of_a_training_that_keeps_none(
    training_setup: TrainingSetup,
) -> None:
    how = train(STEPS, checkpoint_every=2, keep=0, keep_every=4, keep_best=3)
    training_setup.train(training_setup.training(uneven(), how))
    for name in ("teacher", "s"):
        assert set(training_setup.steps(name)) == {4, 8, 12, 16} | best(training_setup, name, 3)


@pytest.mark.parametrize("num", [1, 3])
def test_the_checkpoints_with_the_lowest_held_out_loss_stay_and_a_better_one_pushes_the_worst_out(
    training_setup: TrainingSetup, num: int
) -> None:
    training_setup.train(
        training_setup.training(uneven(), train(STEPS, checkpoint_every=2, keep=1, keep_best=num))
    )
    newest = set(range(STEPS, STEPS - 2 * num, -2))
    assert any(best(training_setup, name, num) != newest for name in ("teacher", "s")), "too even a training"
    for name in ("teacher", "s"):
        assert set(training_setup.steps(name)) == {STEPS} | best(training_setup, name, num)


def test_the_best_are_known_again_after_a_resume_from_the_checkpoints_alone(
    training_setup: TrainingSetup,
) -> None:
    how = train(STEPS, checkpoint_every=2, keep=1, keep_best=2)
    training = training_setup.training({"model": role(lr=0.3)}, how)
    with pytest.raises(StoppedError):
        training_setup.train(training, stop=AfterSteps(training_setup.folder / "nowhere", 9))
    shutil.rmtree(training_setup.folder / "trajectory" / "model" / "best")
    kept = training_setup.steps("model")
    training_setup.train(training)
    found = {step: loss for step, loss in losses(training_setup, "model").items() if step in kept or step > 9}
    wanted = set(sorted(found, key=found.__getitem__)[:2])
    assert set(training_setup.steps("model")) == {STEPS} | wanted


def test_a_loss_measured_at_another_step_is_not_the_checkpoints_own(training_setup: TrainingSetup) -> None:
    training_setup.train(
        training_setup.training({"model": role()}, train(8, checkpoint_every=3, eval_every=2, keep=9))
    )
    (segment,) = training_setup.member("model", role(), 8).segments
    found = {step: held_out_loss(address(checkpoints(segment), step), step) for step in (3, 6, 8)}
    assert found == {3: None, 6: losses(training_setup, "model")[6], 8: losses(training_setup, "model")[8]}


def test_a_broken_checkpoint_is_not_among_the_best(training_setup: TrainingSetup) -> None:
    how = train(STEPS, checkpoint_every=2, keep=99)
    training_setup.train(training_setup.training({"model": role(lr=0.3)}, how))
    (segment,) = training_setup.member("model", role(), STEPS).segments
    first, second, third = sorted(
        losses(training_setup, "model"), key=losses(training_setup, "model").__getitem__
    )[:3]
    Path(address(checkpoints(segment), first), MANIFEST).write_bytes(b"")
    rule = Retention(train(STEPS, checkpoint_every=2, keep=1, keep_best=2), set())
    rule.apply(segment)
    assert {second, third} <= set(training_setup.steps("model"))
    assert rule.apply(segment) == []


def test_the_other_training_of_a_trajectory_leaves_the_marked_ones(training_setup: TrainingSetup) -> None:
    how = {"checkpoint_every": 2, "keep": 1}
    training_setup.train(
        training_setup.training({"model": role(lr=0.3)}, train(8, keep_every=4, keep_best=1, **how))
    )
    before = set(training_setup.steps("model"))
    training_setup.train(training_setup.training({"model": role(lr=0.3)}, train(STEPS, **how)))
    assert before | {STEPS} == set(training_setup.steps("model"))


def test_what_the_store_refuses_to_remove_is_told_and_training_goes_on(
    training_setup: TrainingSetup, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Retention, segment: SegmentAddress) -> list[int]:
        raise OSError(28, "No space left on device", segment.url)

    monkeypatch.setattr(Retention, "apply", refuse)
    training_setup.train(training_setup.training({"model": role()}, train(8)))
    told = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert len(told) == 2 and all("stay: " in line and "No space left" in line for line in told)
    assert training_setup.summary("model")["step"] == 8
    assert not list((training_setup.folder / "trajectory").glob(f"*/*/{TEMPORARY}*"))


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"keep_every": 6}, "keep_every=6 is not a multiple of checkpoint_every=4"),
        ({"keep_best": 1, "eval_every": 3}, "eval_every=3 does not divide checkpoint_every=4"),
    ],
)
def test_a_rule_that_could_not_be_kept_is_refused_with_its_numbers(numbers: dict, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        train(8, **numbers)
    assert Train.model_validate(train(8).model_dump()) == train(8)


def test_the_best_without_held_out_text_is_refused(training_setup: TrainingSetup) -> None:
    training = training_setup.training({"model": role()}, train(8, keep_best=1)).model_dump()
    training["streams"] = [{"input": "labels", "kind": "examples"}]
    with pytest.raises(ValueError, match=r"train\.keep_best=1, but no stream has held-out text"):
        Training.model_validate(training)


def test_a_last_checkpoint_that_fails_is_an_error(training_setup: TrainingSetup) -> None:
    folder = training_setup.folder / "trajectory" / "model" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step-00000008").write_text("in the way")
    with pytest.raises(AtelierError, match="no checkpoint could be written"):
        training_setup.train(training_setup.training({"model": role()}, train(8, checkpoint_every=8)))
