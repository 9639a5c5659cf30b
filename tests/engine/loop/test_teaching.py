"""Online distillation: how students may affect each other and their teacher."""

from pathlib import Path

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule
from atelier.engine.config.train import Progressive
from atelier.engine.loop.decisions import BETA, Average, TeacherLead, settled
from tests.engine.trainings import TrainingSetup, model, role, student, train

TEACHER = role(shape=model(32, dropout=0.1))


@pytest.fixture
def training_setup(tmp_path: Path) -> TrainingSetup:
    return TrainingSetup(tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_teacher_ends_with_the_same_bits_with_0_1_and_3_students(tmp_path: Path, precision: str) -> None:
    students = {
        "early": student(shape=model(16, dropout=0.2)),
        "late": student(start=3),
        "gated": student(gate=0.02),
    }
    found, curves = set(), []
    for number in (0, 1, 3):
        training_setup = TrainingSetup(tmp_path / str(number))
        roles = {"teacher": TEACHER, **dict(list(students.items())[:number])}
        training_setup.train(training_setup.training(roles, train(6, precision=precision)))
        found.add(training_setup.weights("teacher"))
        curves.append(training_setup.curve("teacher"))
    assert len(found) == 1
    assert curves[0] == curves[1] == curves[2]


def test_a_teacher_runs_one_forward_a_micro_batch_whatever_the_number_of_students(
    training_setup: TrainingSetup,
) -> None:
    roles = {"teacher": TEACHER, "a": student(), "b": student(24), "c": student(start=4)}
    training_setup.train(training_setup.training(roles, train(8)))  # 2 micro-batches a step
    assert training_setup.summary("teacher")["forwards"] == 16
    assert [training_setup.summary(name)["teacher_forwards"] for name in ("a", "b", "c")] == [16, 16, 8]


def test_a_control_alone_has_the_same_bits_as_one_that_rides_in_a_gang(tmp_path: Path) -> None:
    control = role(16, seed_name="student")
    alone, gang = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "gang")
    alone.train(alone.training({"control": control}, train(8)))
    gang.train(gang.training({"teacher": TEACHER, "student": student(), "control": control}, train(8)))
    assert alone.weights("control") == gang.weights("control")
    assert alone.curve("control") == gang.curve("control")


def test_a_control_starts_as_its_twin_and_a_closed_gate_keeps_them_alike(
    training_setup: TrainingSetup,
) -> None:
    roles = {"teacher": TEACHER, "twin": student(gate=50.0), "control": role(16, seed_name="twin")}
    training_setup.train(training_setup.training(roles, train(6)))
    assert training_setup.weights("twin") == training_setup.weights("control")
    assert training_setup.summary("twin")["gate_step"] is None
    assert training_setup.summary("twin")["teacher_steps"] == []


def test_a_gate_opens_with_the_step_after_its_lead_was_reached_and_stays_open(
    training_setup: TrainingSetup,
) -> None:
    roles = {"teacher": role(48, lr=1e-2), "gated": student(8, lr=1e-4, gate=0.8)}
    training_setup.train(training_setup.training(roles, train(30)))
    lines = [line["values"] for line in training_setup.curve("gated")]
    teacher = [line["values"]["loss"] for line in training_setup.curve("teacher")]
    lead, after = Average(), []
    for line, other in list(zip(lines, teacher, strict=True))[2:]:  # after two steps of warm-up
        lead.add(line["loss"] - other)
        after.append(lead.value)
    first = 2 + next(i for i, nats in enumerate(after) if nats >= 0.8)
    assert 5 < first < 20
    assert [line["distilling"] for line in lines] == [0.0] * (first + 1) + [1.0] * (29 - first)
    assert training_setup.summary("gated")["gate_step"] == first + 1
    assert training_setup.summary("gated")["teacher_steps"] == [first + 1, 29]
    assert "objective/kd" not in lines[first] and "objective/kd" in lines[first + 1]


def test_the_lead_is_the_bias_corrected_average_of_the_losses_differences(
    training_setup: TrainingSetup,
) -> None:
    training_setup.train(
        training_setup.training({"teacher": TEACHER, "s": student(gate=9.0, start=2)}, train(6))
    )
    teacher = {line["step"]: line["values"]["loss"] for line in training_setup.curve("teacher")}
    sum_ = 0.0
    lines = training_setup.curve("s")
    assert [line["values"]["lead"] for line in lines[:2]] == [0, 0]  # its warm-up
    for count, line in enumerate(lines[2:], start=1):
        sum_ = BETA * sum_ + (1 - BETA) * (line["values"]["loss"] - teacher[line["step"]])
        assert line["values"]["lead"] == pytest.approx(sum_ / (1 - BETA**count), abs=1e-12)


def test_a_gate_never_closes_again() -> None:
    lead = TeacherLead(0.5, 0)
    lead.observe(0.6, 0)
    assert lead.opened == 1
    for step in range(1, 200):
        lead.observe(-5.0, step)
    assert lead.is_open and lead.opened == 1 and lead.nats < 0


def test_a_gate_does_not_open_on_what_the_warm_up_shows() -> None:
    lead = TeacherLead(0.1, 0, settled=20)
    for step in range(20):
        lead.observe(3.0, step)
    assert lead.nats == 0 and not lead.is_open
    for step in range(20, 120):
        lead.observe(0.05, step)
    assert lead.nats == pytest.approx(0.05) and not lead.is_open
    for step in range(120, 200):
        lead.observe(0.3, step)
    assert 120 < lead.opened < 160


def test_a_gate_waits_for_the_warm_up_of_both(training_setup: TrainingSetup) -> None:
    def warm(spec: Role, steps: int) -> Role:
        schedule = spec.optim.schedule.model_copy(update={"warmup": steps})
        return spec.model_copy(update={"optim": spec.optim.model_copy(update={"schedule": schedule})})

    roles = {"teacher": warm(TEACHER, 5), "a": warm(student(), 3), "b": warm(student(start=4), 3)}
    training = training_setup.training(roles, train(8))
    assert [settled(training, name) for name in roles] == [5, 5, 7]
    grown = training_setup.training(roles, train(8, progressive=Progressive(steps=6)))
    assert [settled(grown, name) for name in roles] == [6, 6, 7]


def test_a_weight_that_follows_the_lead_does_so_again_after_a_stop(
    training_setup: TrainingSetup,
) -> None:
    """At 0 while the teacher is behind, in proportion to its lead, whole from `nats` on."""
    follows = {
        "lm": LM(weight=0.25),
        "kd": Logits(weight=1.0, schedule=WeightSchedule(kind="lead", nats=0.4)),
    }
    roles = {
        "teacher": role(48, lr=1e-2),
        "ahead": role(8, teacher="teacher", lr=1e-4, objective=follows),
        "behind": role(64, teacher="ahead", lr=1e-2, objective=follows),
    }
    training_setup.train(training_setup.training(roles, train(16)))
    lines = [line["values"] for line in training_setup.curve("ahead")]
    shares = [line["objective/weight/kd"] for line in lines]
    before = [0.0, *(line["lead"] for line in lines[:-1])]
    assert shares == [min(1.0, max(0.0, lead / 0.4)) for lead in before]
    assert shares[0] == 0 and 0 < shares[3] < 1 and shares[-1] == 1
    behind = [line["values"] for line in training_setup.curve("behind")]
    assert behind[-1]["lead"] < 0 and behind[-1]["objective/weight/kd"] == 0
    assert "objective/kd" not in behind[-1] and behind[-1]["distilling"] == 0
    parts = TrainingSetup(training_setup.folder / "parts")
    assert parts.train_in_pieces(parts.training(roles, train(16)), every=6) == 2
    for name in roles:
        assert parts.weights(name) == training_setup.weights(name)
        assert parts.curve(name)[-1] == training_setup.curve(name)[-1]


def test_a_gate_before_an_objective_of_its_own_is_refused(training_setup: TrainingSetup) -> None:
    spec = role(16, teacher="teacher", gate=0.2, objective={"kd": Logits()})
    with pytest.raises(ConfigError, match=r"roles\.s\.gate.*nothing is optimised"):
        training_setup.train(training_setup.training({"teacher": TEACHER, "s": spec}, train(4)))


def test_an_assistant_learns_and_teaches_on_the_same_batches(training_setup: TrainingSetup) -> None:
    roles = {"teacher": TEACHER, "assistant": student(24), "pupil": student(16, teacher="assistant")}
    training_setup.train(training_setup.training(roles, train(6)))
    alone = TrainingSetup(training_setup.folder / "alone")
    alone.train(alone.training({"teacher": TEACHER, "assistant": student(24)}, train(6)))
    assert alone.weights("assistant") == training_setup.weights("assistant")
    assert (
        training_setup.summary("assistant")["forwards"]
        == training_setup.summary("pupil")["teacher_forwards"]
        == 12
    )


def test_a_frozen_teacher_teaches_without_moving_by_one_forward_a_micro_batch(
    training_setup: TrainingSetup,
) -> None:
    training_setup.train(
        training_setup.training({"teacher": role(48, lr=1e-2)}, train(16, checkpoint_every=16))
    )
    before = training_setup.weights("teacher")
    training_setup.inputs["finished"] = training_setup.as_input("teacher")
    frozen = training_setup.member(
        "teacher", role(48), 16, mode="frozen", output=False, segments=(), init="finished"
    )
    roles = {
        "teacher": frozen,
        "a": student(lr=1e-2),
        "b": student(gate=0.5),
        "control": role(16, lr=1e-2, seed_name="a"),
    }
    training_setup.train(training_setup.training(roles, train(16, checkpoint_every=16)))
    assert training_setup.weights("teacher") == before
    assert (
        training_setup.summary("a")["teacher_forwards"]
        == training_setup.summary("b")["teacher_forwards"]
        == 32
    )
    kl = [line["values"]["objective/kd"] for line in training_setup.curve("a")]
    assert kl[-1] < 0.8 * kl[0]
    assert training_setup.summary("a")["eval_loss"] < training_setup.summary("control")["eval_loss"]
    assert training_setup.summary("b")["gate_step"] == 3  # after two steps of warm-up


def test_a_student_that_leaves_or_comes_late_changes_nothing_for_the_others(tmp_path: Path) -> None:
    with_it, without = TrainingSetup(tmp_path / "with"), TrainingSetup(tmp_path / "without")
    stays = student(24)
    without.train(without.training({"teacher": TEACHER, "stays": stays}, train(8)))
    guest = with_it.member("guest", student(start=2, end=6), 6)
    with_it.train(with_it.training({"teacher": TEACHER, "guest": guest, "stays": stays}, train(8)))
    for name in ("teacher", "stays"):
        assert with_it.weights(name) == without.weights(name)
        assert with_it.curve(name) == without.curve(name)
    summary = with_it.summary("guest")
    assert (summary["started_at"], summary["left_at"], summary["teacher_steps"]) == (2, 6, [2, 5])
    assert summary["teacher_forwards"] == 8  # of 2 micro-batches a step


def test_one_who_left_has_the_bits_of_one_whose_training_was_that_long(tmp_path: Path) -> None:
    left, short = TrainingSetup(tmp_path / "left"), TrainingSetup(tmp_path / "short")
    guest = left.member("guest", student(end=4), 4)
    left.train(left.training({"teacher": TEACHER, "guest": guest}, train(8)))
    short.train(short.training({"teacher": TEACHER, "guest": student()}, train(4)))
    assert left.weights("guest") == short.weights("guest")


def test_between_lessons_a_student_learns_from_text_alone(training_setup: TrainingSetup) -> None:
    roles = {"teacher": TEACHER, "weekly": student(period=3, start=1)}
    training_setup.train(training_setup.training(roles, train(8)))
    lines = [line["values"] for line in training_setup.curve("weekly")]
    assert [line["distilling"] for line in lines] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    assert ["objective/kd" in line for line in lines] == [bool(line["distilling"]) for line in lines]
