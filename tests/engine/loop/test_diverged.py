"""A role that diverges is ended with its name; roles that do not need it continue."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.error import AtelierError, DivergedError
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.role import Role
from tests.engine.loop.test_health import NAN, assert_same, how, plant, warnings
from tests.engine.trainings import TrainingSetup, role, student, train


def broken(spec: Role) -> Role:
    """Its first update makes its weights infinite."""
    optim = spec.optim
    assert isinstance(optim, AdamW)
    return spec.model_copy(update={"optim": optim.model_copy(update={"weight_decay": 1e45})})


def test_a_held_out_loss_that_is_nan_after_the_last_update_names_role_step_and_way_out(
    tmp_path: Path,
) -> None:
    setup = TrainingSetup(tmp_path)
    with pytest.raises(AtelierError) as caught:
        setup.train(setup.training({"model": broken(role())}, train(1)))
    said = str(caught.value)
    assert (
        said.startswith("roles.model: step 1: eval/loss nan is not finite") and "lower its optim.lr" in said
    )
    assert caught.value.exit_code == 1 and not setup.output("model").exists()


def test_a_student_that_diverges_in_the_last_update_costs_nothing_but_itself(
    tmp_path: Path,
) -> None:
    alone, taught = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "taught")
    alone.train(alone.training({"teacher": role(), "t": student(24)}, train(1)))
    with pytest.raises(DivergedError, match=r"roles\.s: step 1: eval/loss nan .*; s: not published"):
        taught.train(taught.training({"teacher": role(), "s": broken(student()), "t": student(24)}, train(1)))
    assert_same(alone, taught, "teacher", "t")
    assert not taught.output("s").exists() and taught.steps("s") == []


def test_the_others_go_on_without_a_student_whose_patience_is_exceeded(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    plant(monkeypatch, {("s", step): NAN for step in range(6, 17)})
    alone, taught = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "taught")
    alone.train(alone.training({"teacher": role(), "t": student(24)}, how()))
    capsys.readouterr()
    roles = {"teacher": role(), "s": student(), "t": student(24)}
    with pytest.raises(DivergedError, match=r"roles\.s: .* in a row, up to step 8; lower its optim.lr"):
        taught.train(taught.training(roles, how()))
    assert_same(alone, taught, "teacher", "t")
    assert taught.steps("s") == [4] and taught.curve("s")[-1]["step"] == 8
    assert warnings(capsys)[-1].endswith("; it ends here; training continues with t, teacher")


def test_what_learns_from_a_role_that_diverges_ends_with_it(tmp_path: Path, monkeypatch) -> None:
    plant(monkeypatch, {("s", step): NAN for step in range(6, 17)})
    setup = TrainingSetup(tmp_path)
    roles = {"teacher": role(), "s": student(), "below": student(24, teacher="s"), "other": role(24)}
    with pytest.raises(DivergedError, match=r"(below, s|s, below): not published"):
        setup.train(setup.training(roles, how()))
    assert [name for name in roles if setup.output(name).exists()] == ["teacher", "other"]


def test_a_teacher_that_diverges_with_all_its_students_ends_the_training(tmp_path: Path, monkeypatch) -> None:
    plant(monkeypatch, {("teacher", step): NAN for step in range(6, 17)})
    setup = TrainingSetup(tmp_path)
    with pytest.raises(AtelierError, match=r"roles\.teacher: .* up to step 8") as caught:
        setup.train(setup.training({"teacher": role(), "s": student()}, how()))
    assert caught.value.exit_code == 1 and setup.steps("teacher") == [4]


def test_a_student_that_has_finished_is_published_though_its_teacher_diverges_in_that_update(
    tmp_path: Path,
) -> None:
    setup = TrainingSetup(tmp_path)
    with pytest.raises(DivergedError, match=r"roles\.teacher: step 1: .*; teacher: not published"):
        setup.train(setup.training({"teacher": broken(role()), "s": student()}, train(1)))
    assert setup.output("s").exists() and not setup.output("teacher").exists()


def test_a_policy_to_stop_stops_all(tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path)
    with pytest.raises(AtelierError, match=r"roles\.s: step 1: eval/loss nan") as caught:
        setup.train(setup.training({"teacher": role(), "s": broken(student())}, how(1, nan="stop")))
    assert caught.value.exit_code == 1 and not setup.output("teacher").exists()


def test_the_steps_end_with_the_last_role_that_is_left(tmp_path: Path, monkeypatch) -> None:
    plant(monkeypatch, {("s", step): NAN for step in range(6, 17)})
    setup = TrainingSetup(tmp_path)
    short = setup.member("teacher", role(), 10)
    with pytest.raises(DivergedError):
        setup.train(setup.training({"teacher": short, "s": student()}, how()))
    assert setup.curve("teacher")[-1]["step"] == 10
    assert json.loads((setup.output("teacher") / "body.json").read_text())["summary"]["step"] == 10


def test_stopped_again_and_again_after_a_student_diverged_the_others_end_with_the_same_bits(
    tmp_path: Path, monkeypatch
) -> None:
    plant(monkeypatch, {("s", step): NAN for step in range(6, 17)})
    alone, taught = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "taught")
    alone.train(alone.training({"teacher": role(), "t": student(24)}, how(16)))
    roles = {"teacher": role(), "s": student(), "t": student(24)}
    with pytest.raises(DivergedError, match=r"roles\.s: "):
        taught.train_in_pieces(taught.training(roles, how(16)), 5)
    assert_same(alone, taught, "teacher", "t")
