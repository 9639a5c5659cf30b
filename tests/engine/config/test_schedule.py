"""Schedules: a floor is reached at the last step; schedules without one are unchanged."""

import math
import random
from typing import Literal

import pytest
from pydantic import ValidationError

from atelier.engine.config.error import ConfigError
from atelier.engine.config.schedule import Schedule, WeightSchedule

Falling = Literal["linear", "cosine", "wsd"]
FALLING: tuple[Falling, ...] = ("linear", "cosine", "wsd")


def drawn(kind: Falling, floor: float, seed: int) -> tuple[Schedule, int, int]:
    """A schedule whose warm-up fits, its first step and its end."""
    draw = random.Random(f"{kind} {seed}")
    start, length = draw.randrange(50), draw.randint(1, 200)
    bare = Schedule(kind=kind, decay=draw.choice((0.01, 0.2, 0.5, 1.0)), floor=floor)
    room = bare.branch_step(start, start + length) - start if kind == "wsd" else length - 1
    return bare.model_copy(update={"warmup": draw.randint(0, room)}), start, start + length


@pytest.mark.parametrize("kind", FALLING)
def test_the_last_step_is_at_the_floor_and_none_before_is_below(kind: Falling) -> None:
    for seed in range(200):
        schedule, start, end = drawn(kind, floor := 0.1, seed)
        assert schedule.misfit(start, end) == ("", "")
        found = [schedule.factor(step, start, end) for step in range(start, end)]
        after = found[schedule.warmup :]
        assert found[-1] == pytest.approx(floor, abs=1e-12), (schedule, start, end)
        assert after == sorted(after, reverse=True) and min(after) >= floor - 1e-12
        assert len(after) < 3 or after[0] > floor, (schedule, start, end)


@pytest.mark.parametrize("kind", FALLING)
def test_a_schedule_without_a_floor_keeps_its_bits(kind: Falling) -> None:
    for seed in range(200):
        schedule, start, end = drawn(kind, 0.0, seed)
        schedule = schedule.model_copy(update={"warmup": random.Random(seed).randrange(250)})
        for step in range(start, end):
            assert schedule.factor(step, start, end) == first_version(schedule, step, start, end)


def first_version(schedule: Schedule, step: int, start: int, end: int) -> float:
    done = step - start
    warm = min(1.0, (done + 1) / (schedule.warmup + 1)) if schedule.warmup else 1.0
    if schedule.kind == "wsd":
        first = schedule.branch_step(start, end)
        return warm * (1.0 if step < first else (end - step) / (end - first + 1))
    share = min(1.0, max(0.0, (done - schedule.warmup) / max(1, end - start - schedule.warmup)))
    return warm * (1.0 - share if schedule.kind == "linear" else 0.5 * (1 + math.cos(math.pi * share)))


def test_a_floor_above_0_is_the_second_version_and_a_trunk_knows_none_of_it() -> None:
    with_floor, without = Schedule(warmup=3, floor=0.1), Schedule(warmup=3)
    assert with_floor.as_identity() == without.as_identity() | {"floor": 0.1, "version": 2}
    assert "version" not in without.as_identity() and "version" not in Schedule(kind="constant").as_identity()
    assert with_floor.trunk() == without.trunk() == {"kind": "constant", "warmup": 3}


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (
            Schedule(warmup=50),
            r"optim\.schedule\.warmup: 50 steps of warm-up, but lr falls after 32 of its 40",
        ),
        (Schedule(warmup=33), "32 would fit, or more steps"),
        (Schedule(kind="cosine", warmup=40), "39 would fit"),
        (Schedule(kind="linear", warmup=41, floor=0.1), "39 would fit"),
    ],
)
def test_a_warm_up_that_does_not_end_before_lr_falls_is_refused(schedule: Schedule, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        schedule.check(10, 50, "optim.schedule")
    schedule.model_copy(update={"warmup": 32}).check(10, 50, "optim.schedule")
    Schedule(kind="constant", warmup=1000).check(10, 50, "optim.schedule")


@pytest.mark.parametrize("half_life", [0.1, 0.25, 3, 40])
def test_an_exponential_decay_halves_lr_in_every_half_life_from_the_step_where_a_line_falls(
    half_life: float,
) -> None:
    for seed in range(100):
        line, start, end = drawn("wsd", 0.0, seed)
        curve = Schedule.model_validate(line.model_dump() | {"shape": "exponential", "half_life": half_life})
        first = line.branch_step(start, end)
        assert curve.branch_step(start, end) == first and curve.trunk() == line.trunk()
        steps = half_life if half_life >= 1 else half_life * (end - first)
        for step in range(start, end):
            before = line.factor(step, start, end) if step < first else 0.5 ** ((step - first + 1) / steps)
            assert curve.factor(step, start, end) == pytest.approx(before, rel=1e-12)


def test_a_linear_decay_is_identified_as_it_was_before_there_was_another_shape() -> None:
    assert Schedule(shape="linear", half_life=0.2).as_identity() == {"kind": "wsd", "decay": 0.2}
    curve = Schedule(shape="exponential", half_life=0.1).as_identity()
    assert curve == {"kind": "wsd", "decay": 0.2, "shape": "exponential", "half_life": 0.1}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"half_life": 0.1}, "a linear decay has no half_life"),
        ({"kind": "cosine", "shape": "exponential"}, "a cosine schedule has no shape; kind=wsd has"),
        ({"shape": "exponential", "floor": 0.1}, "an exponential decay has no floor"),
        ({"shape": "exponential", "half_life": 0}, "greater than 0"),
        ({"shape": "exponential", "half_life": 2.5}, "a step must be a whole number"),
    ],
)
def test_a_shape_that_its_schedule_has_not_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Schedule.model_validate(given)


def test_a_weight_is_where_its_schedule_says_before_between_and_after() -> None:
    for seed in range(300):
        draw = random.Random(f"weight {seed}")
        start, length = draw.randrange(50), draw.randint(4, 200)
        first, after = sorted(draw.sample(range(length + 1), 2))
        if after - first < 2:
            continue
        kind: Literal["linear", "cosine"] = draw.choice(("linear", "cosine"))
        schedule = WeightSchedule(kind=kind, first=0.25, last=1.5, begin=first, end=after)
        schedule.check(start, start + length, "schedule")
        found = [schedule.factor(step, start, start + length) for step in range(start, start + length)]
        assert set(found[: first + 1]) == {0.25} and set(found[after - 1 :]) == {1.5}
        assert found == sorted(found)
        middle = schedule.factor(start + first + 1, start, start + length) - 0.25
        share = 1 / (after - 1 - first)
        expected = share if kind == "linear" else 0.5 * (1 - math.cos(math.pi * share))
        assert middle == pytest.approx(1.25 * expected)


def test_a_weight_depends_on_the_end_from_the_step_on_from_which_it_moves_towards_it() -> None:
    for given, expected in (
        ({"begin": 3, "end": 9}, 110),  # steps: on no end at all
        ({"begin": 0, "end": 9}, 110),
        ({"begin": 0.5, "end": 0}, 60),
        ({"begin": 3, "end": 0}, 13),
        ({"begin": 3, "end": 0.5}, 13),
        ({}, 10),
    ):
        schedule = WeightSchedule.model_validate({"kind": "linear"} | given)
        assert schedule.branch_step(10, 110) == expected
        longer = range(10, schedule.branch_step(10, 110))
        assert all(schedule.factor(step, 10, 110) == schedule.factor(step, 10, 310) for step in longer)
    assert WeightSchedule().branch_step(10, 110) == 110


@pytest.mark.parametrize(
    "given", [{"begin": 8, "end": 9}, {"begin": 0.9, "end": 0.5}, {"begin": 5, "end": 12}]
)
def test_a_weight_that_does_not_move_within_its_roles_steps_is_refused(given: dict[str, float]) -> None:
    schedule = WeightSchedule.model_validate({"kind": "linear"} | given)
    with pytest.raises(
        ConfigError, match=r"schedule\.end: the weight moves from step \d+ to \d+ of the role's 10"
    ):
        schedule.check(2, 12, "schedule")
    with pytest.raises(ValueError, match="a constant weight does not move"):
        WeightSchedule.model_validate(given)


@pytest.mark.parametrize("begin", [math.inf, 10.7, True])
def test_a_step_that_is_none_is_refused_with_a_sentence(begin: float) -> None:
    with pytest.raises(ValueError, match=r"must be a whole number|must be a step or a share"):
        WeightSchedule.model_validate({"kind": "linear", "begin": begin})


def test_noam_rises_to_its_peak_and_falls_with_the_root_of_the_step_whatever_the_end() -> None:
    schedule = Schedule(kind="noam", warmup=9)
    found = [schedule.factor(step, 5, 1000) for step in range(5, 1000)]
    assert found[:10] == pytest.approx([0.1 * n for n in range(1, 11)]) and max(found) == found[9] == 1.0
    assert found[39] == pytest.approx(0.5) and found[999 - 5] == pytest.approx((10 / 995) ** 0.5)
    assert found[:45] == [schedule.factor(step, 5, 50) for step in range(5, 50)]
    assert schedule.branch_step(5, 50) == 50 and schedule.misfit(5, 8) == ("", "")
    assert schedule.trunk() == {"kind": "noam", "warmup": 9} != Schedule(kind="constant", warmup=9).trunk()
    with pytest.raises(ValidationError, match="a noam schedule has no floor"):
        Schedule(kind="noam", floor=0.1)
