"""The recipe of MT-NLG 530B (2201.11990, section 3.3): a batch ramp by samples, a learning rate by tokens."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.schedule import RampUp, Schedule
from atelier.engine.config.train import Progressive, Train
from atelier.engine.plan.checks import at_step, check_layout
from atelier.engine.plan.layout_checks import padded_rows
from tests.engine.trainings import role

SEQUENCE, FULL, RAMP = 2048, 1920, 5_859_375  # 12e9 tokens are 5,859,375 samples
SCHEDULE = Schedule(kind="cosine", warmup_tokens=1e9, decay_tokens=340e9, floor=0.1)
COUNTS = (0, 1e6, 5e8, 1e9, 2e9, 6e9, 12e9, 50e9, 100e9, 170e9, 269e9, 269.99e9)


def recipe(**more: Any) -> Train:
    ramp = {"rampup": {"start": 32, "by": 32, "samples": RAMP}}
    sizes = {"global_batch": FULL, "sequence": SEQUENCE, "tokens": 270e9, "progressive": ramp}
    return Train.model_validate(sizes | more)


def learning_rate(tokens: float) -> float:
    """As the paper says: one billion tokens of linear warm-up to 5e-5, a cosine to 10 % over 340 billion."""
    if tokens < 1e9:
        return 5e-5 * tokens / 1e9
    angle = math.pi * min(tokens - 1e9, 339e9) / 339e9
    return 5e-6 + (5e-5 - 5e-6) * (math.cos(angle) + 1) / 2


def batches(last: int) -> list[tuple[int, int]]:
    """Samples before each step, and its batch, as Megatron-LM counts them step by step, up to `last`
    samples.
    """
    consumed, found = 0, []
    while consumed <= last:
        size = FULL if consumed > RAMP else 32 + 32 * int(consumed / (RAMP / ((FULL - 32) // 32)))
        found.append((consumed, size))
        consumed += size
    return found


def test_the_ramp_is_megatron_s_at_every_step() -> None:
    train = recipe()
    expected = batches(RAMP + 10 * FULL)
    sizes = train.progressive.rampup.sizes(FULL)
    assert len(sizes) == 60 and sizes[-1][2] == FULL
    for step in range(0, len(expected), 7):
        assert train.at(step).global_batch == expected[step][1], step
        assert train.progressive.samples_before(step, FULL) == expected[step][0], step
    changes = [n for n in range(1, len(expected)) if expected[n][1] != expected[n - 1][1]]
    assert train.first_steps() == [0, *changes]


def test_ramp_and_learning_rate_at_twelve_token_counts_are_the_paper_s() -> None:
    train, expected = recipe(), batches(RAMP)
    for count in COUNTS:
        step = train.steps_until(count)
        samples = (
            next(consumed for consumed, _ in expected if consumed * SEQUENCE >= count)
            if count < 12e9
            else expected[-1][0] + expected[-1][1]
            + -(-(int(count) - (expected[-1][0] + expected[-1][1]) * SEQUENCE) // (FULL * SEQUENCE)) * FULL
        )  # fmt: skip
        assert train.tokens_before(step) == samples * SEQUENCE >= count
        size = FULL if samples > RAMP else 32 + 32 * int(samples / (RAMP / 59))
        assert train.at(step).global_batch == size
        lr = 5e-5 * SCHEDULE.factor(step, 0, train.num_steps, train.tokens_before(step))
        assert lr == pytest.approx(learning_rate(samples * SEQUENCE), rel=1e-14, abs=0)
    assert train.tokens_before(train.num_steps) >= 270e9 > train.tokens_before(train.num_steps - 1)


def test_a_schedule_that_counts_steps_is_another_one() -> None:
    """The broken twin: the same fractions of the steps, whose first ones read few tokens."""
    train = recipe()
    steps = Schedule(kind="cosine", warmup=round(train.num_steps / 270), floor=0.1)
    step = train.steps_until(5e8)
    assert abs(5e-5 * steps.factor(step, 0, train.num_steps) - learning_rate(5e8)) > 1e-6


def test_a_decay_in_tokens_does_not_depend_on_where_the_training_ends() -> None:
    assert SCHEDULE.branch_step(3, 100) == 100 and SCHEDULE.is_endless and SCHEDULE.misfit(0, 1) == ("", "")
    assert SCHEDULE.trunk() == SCHEDULE.as_identity()
    assert SCHEDULE.factor(5, 0, 10, 400e9) == 0.1 == SCHEDULE.factor(5, 0, 1000, 340e9)
    line = Schedule(kind="linear", decay_tokens=100)
    assert [line.factor(0, 0, 1, tokens) for tokens in (0, 25, 100, 101)] == [1.0, 0.75, 0.0, 0.0]
    warm = Schedule(kind="wsd", warmup_tokens=100)
    assert [warm.factor(0, 0, 10, tokens) for tokens in (0, 25, 100)] == [0.0, 0.25, 1.0]
    assert warm.trunk() == {"kind": "constant", "warmup_tokens": 100}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"kind": "cosine", "warmup": 5, "decay_tokens": 100}, "warmup=5 counts steps"),
        ({"kind": "wsd", "decay_tokens": 100}, "a wsd schedule has no decay_tokens"),
        ({"kind": "noam", "warmup_tokens": 100}, "noam schedule falls by steps"),
        ({"kind": "cosine", "warmup_tokens": 100, "decay_tokens": 100}, "decay_tokens=100 are no more"),
        ({"kind": "constant", "floor": 0.1}, "constant schedule has no floor"),
    ],
)
def test_settings_in_two_units_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Schedule.model_validate(given)


def test_a_ramp_that_misses_the_batch_or_meets_other_growth_is_refused() -> None:
    for ramp in ({"start": 30, "by": 32, "samples": 9}, {"start": 1920, "by": 32, "samples": 9}):
        with pytest.raises(ValidationError, match="does not reach global_batch=1920"):
            recipe(progressive={"rampup": ramp})
    with pytest.raises(ValidationError, match="steps=4 and rampup both let the batch grow"):
        Progressive(steps=4, rampup=RampUp(start=1, by=1, samples=1))
    with pytest.raises(ValidationError, match=r"start, by and samples above 0.* given 32, 0 and 5"):
        RampUp(start=32, samples=5)


def test_sizes_that_a_step_jumps_over_are_left_out_and_samples_still_add_up() -> None:
    train = Train(
        steps=9,
        global_batch=10,
        sequence=16,
        progressive=Progressive(rampup=RampUp(start=2, by=2, samples=9)),
    )
    sizes = [train.at(step).global_batch for step in range(6)]
    assert sizes == [2, 2, 4, 8, 10, 10]
    assert [train.progressive.samples_before(step, 10) for step in range(6)] == [0, 2, 4, 8, 16, 26]


@pytest.mark.parametrize("data", [8, 10, 12])
def test_rows_of_padding_fill_batches_that_a_layout_does_not_divide(data: int) -> None:
    train = recipe(micro_batch=1)
    plain, staged = (
        Parallel(shard=1, replicate=data, pipeline=pipeline, recompute="full") for pipeline in (1, 35)
    )
    for step in (0, 5000, 9000, 20_000):
        size = train.at(step).global_batch
        assert at_step(train, plain, step).global_batch == -(-size // data) * data
        rows = at_step(train, staged, step).global_batch
        assert rows >= max(size, 35 * data) and rows % data == 0 and rows - size < max(data, 35 * data)
    check_layout(plain, {"m": role()}, recipe(micro_batch=1, sequence=64))
    interleaved = staged.model_copy(update={"schedule": "interleaved"})
    assert padded_rows(interleaved, train.at(0)) == 35 * data
    assert padded_rows(interleaved, train.model_copy(update={"global_batch": 36 * data})) == 70 * data
