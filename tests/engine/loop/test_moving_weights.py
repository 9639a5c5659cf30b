"""Objectives whose weights change over the steps. Resuming with equal bits is in test_training.py."""

from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member
from atelier.engine.config.schedule import WeightSchedule
from atelier.engine.plan.role_checks import check_schedules
from tests.engine.trainings import TrainingSetup, role, train

STEPS = 12


def moving(**schedule: Any) -> WeightSchedule:
    return WeightSchedule(**({"kind": "linear"} | schedule))


def pupil(**objective: ObjectiveSpec) -> Role:
    return role(16, objective=objective, teacher="teacher")


def curves(folder: Path, **students: Role) -> dict[str, list[dict[str, Any]]]:
    """Students of one teacher that start from the same weights; their metric values by step."""
    setup = TrainingSetup(folder)
    named = {name: spec.model_copy(update={"seed_name": "s"}) for name, spec in students.items()}
    setup.train(setup.training({"teacher": role()} | named, train(STEPS)))
    return {name: [line["values"] for line in setup.curve(name)] for name in students}


def test_a_student_learns_as_with_a_constant_weight_until_its_weight_moves(tmp_path: Path) -> None:
    found = curves(
        tmp_path,
        falling=pupil(lm=LM(weight=0.5), kd=Logits(schedule=moving(begin=6))),
        constant=pupil(lm=LM(weight=0.5), kd=Logits()),
        early=pupil(lm=LM(weight=0.5), kd=Logits(schedule=moving(first=0.0, last=0.0, begin=2, end=4))),
        alone=role(16),
    )
    weights = [values.pop("objective/weight/kd") for values in found["falling"]]
    assert weights == pytest.approx([0.5] * 7 + [0.4, 0.3, 0.2, 0.1, 0.0])
    same = [mine == theirs for mine, theirs in zip(found["falling"], found["constant"], strict=True)]
    assert same[:7] == [True] * 7 and not any(same[8:]), "step 8 still has the weights of before"
    assert "objective/kd" in found["falling"][-2] and "objective/kd" not in found["falling"][-1]
    losses = {name: [values["loss"] for values in found[name]] for name in ("early", "alone")}
    assert losses["early"] == losses["alone"], "of weight 0 it is as if it were not there"


def test_a_step_without_anything_to_optimise_is_refused() -> None:
    both = pupil(lm=LM(schedule=moving(begin=1)), kd=Logits(schedule=moving()))
    with pytest.raises(
        ConfigError, match=r"roles\.s\.objective: at step 11 no objective has a weight above 0"
    ):
        check_schedules({"s": both}, train(STEPS))
    swapped = pupil(lm=LM(schedule=moving()), kd=Logits(schedule=moving(first=0.0, last=1.0)))
    check_schedules({"s": swapped}, train(STEPS))
    for gated in ({"gate": 0.1}, {"period": 2}):
        with pytest.raises(ConfigError, match="at step 11 no objective of its own has a weight above 0"):
            check_schedules({"s": swapped.model_copy(update=gated)}, train(STEPS))


def test_a_longer_training_goes_on_from_the_trunk_before_a_weight_moves(tmp_path: Path) -> None:
    """Cut at the step from which the weight falls, in a training of any length."""

    def student(begin: float) -> Role:
        return pupil(lm=LM(weight=0.5), kd=Logits(schedule=moving(begin=begin)))

    def members(setup: TrainingSetup, begin: float, end: int, name: str) -> dict[str, Member]:
        segments = (setup.segment("trunk", 0, 6), setup.segment(name, 6, end))
        mine = setup.member("s", student(begin), end, segments=segments)
        return {"teacher": setup.member("teacher", role(), end), "s": mine}

    setup, whole = TrainingSetup(tmp_path / "setup"), TrainingSetup(tmp_path / "whole")
    setup.train(setup.training(members(setup, 0.5, 12, "short"), train(12)))
    setup.train(setup.training(members(setup, 0.25, 24, "long"), train(24)))
    whole.train(whole.training({"teacher": role(), "s": student(0.25)}, train(24)))
    assert setup.weights("s") == whole.weights("s")
    losses = [[line["values"]["loss"] for line in each] for each in (
        setup.curve("trunk") + setup.curve("long"), whole.curve("s"))]  # fmt: skip
    assert losses[0] == losses[1] and len(setup.curve("short")) == 6


def test_a_weight_that_follows_a_lead_needs_a_teacher_a_number_and_something_else_to_optimise() -> None:
    follows = WeightSchedule(kind="lead", nats=0.3)
    with pytest.raises(ValueError, match=r"weight of objective lm follows a teacher's lead, but lm needs no"):
        pupil(lm=LM(schedule=follows), kd=Logits())
    for given in ({"kind": "lead"}, {"kind": "linear", "nats": 0.3}, {"nats": 0.3}):
        with pytest.raises(ValueError, match=r"kind=lead needs it above 0|does not move"):
            WeightSchedule(**given)
    with pytest.raises(ValueError, match="has no steps; leave out all but nats"):
        WeightSchedule(kind="lead", nats=0.3, begin=4)
    check_schedules({"s": pupil(lm=LM(), kd=Logits(schedule=follows))}, train(STEPS))
    with pytest.raises(
        ConfigError, match=r"at step 0 no objective.*leave one constant, as lm: weights that follow"
    ):
        check_schedules({"s": pupil(kd=Logits(schedule=follows))}, train(STEPS))
    assert follows.as_identity() == {"kind": "lead", "nats": 0.3}
    assert follows.branch_step(2, 12) == 12  # it does not depend on where training ends
    assert [follows.factor(4, 2, 12, nats) for nats in (-1.0, 0.15, 1.0)] == [0.0, 0.5, 1.0]
