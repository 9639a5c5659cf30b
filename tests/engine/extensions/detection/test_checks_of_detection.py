"""Refusals of roles for replaced-token detection that would learn from nothing or fail later."""

from typing import Any

import pytest

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.role import Role
from atelier.engine.config.schedule import WeightSchedule
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from atelier.engine.plan.checks import check_layout
from tests.engine.extensions.detection.detection import MASKED, SIZES, detector, ernie, generator
from tests.engine.trainings import ONE, role, train

APART = {"roles": {"a": ["generator", "d", "old"], "b": ["pupil"]}, "site": "b", "mailbox": "/tmp/mail"}


def pupil(**objective: Any) -> Role:
    """Of the detector."""
    return role(shape=ernie(16), objective={"lm": LM(), **objective}, teacher="d")


@pytest.mark.parametrize(
    ("roles", "how", "problem"),
    [
        (
            {"generator": detector(own=MASKED, teacher="first"), "first": generator()},
            {},
            "roles.d.teacher: generator is itself a detector",
        ),
        (
            {"d": detector(own={"more": Logits(teacher="old")})},
            {},
            "roles.d.objective.more.teacher: old is not supported",
        ),
        (
            {"d": detector(own=MASKED), "pupil": pupil(kd=Logits(), more=Logits(teacher="old"))},
            {},
            "roles.pupil.objective.more.teacher: old is not supported beside the detector d",
        ),
        (
            {"pupil": pupil(kd=Logits())},
            {},
            "roles.pupil.objective.kd: .* token predictions with d",
        ),
        (
            {"pupil": pupil(hidden=Hidden(schedule=WeightSchedule(kind="lead", nats=0.1)))},
            {},
            "roles.pupil.objective.hidden: .* token predictions with d",
        ),
        (
            {"pupil": pupil(hidden=Hidden()).model_copy(update={"gate": 0.1})},
            {},
            "roles.pupil.gate: 0.1 nats, but d predicts no tokens",
        ),
        (
            {"d": detector(own=MASKED), "pupil": pupil(kd=Logits())},
            {"link": APART},
            "roles.pupil.teacher: d reads rows that generator has changed.*both at one site",
        ),
    ],
)
def test_what_cannot_learn_from_a_role_that_detects_is_refused(
    roles: dict[str, Role], how: dict[str, Any], problem: str
) -> None:
    found = {"generator": generator(), "d": detector(), "old": generator()} | roles
    with pytest.raises(ConfigError, match=problem):
        check_layout(ONE, found, train(10, **(SIZES | how)))


def test_a_longer_delay_than_a_checkpoint_has_drawn_tokens_of_is_refused() -> None:
    assert parse(Replaced, {"kind": "replaced", "delay": 64}, "objective").delay == 64
    with pytest.raises(ConfigError, match=r"objective\.delay: .* to 64"):
        parse(Replaced, {"kind": "replaced", "delay": 65}, "objective")


def test_a_student_of_a_detector_that_predicts_tokens_too_is_not() -> None:
    good = {"generator": generator(), "d": detector(own=MASKED), "pupil": pupil(kd=Logits(), hidden=Hidden())}
    check_layout(ONE, good, train(10, **SIZES))
    alone = {"generator": generator(), "d": detector(), "pupil": pupil(hidden=Hidden())}
    check_layout(ONE, alone, train(10, **SIZES))
