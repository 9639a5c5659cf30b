"""Progressive learning: which sizes grow, in which stages, and how much data that takes."""

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.train import Progressive, Train
from atelier.engine.plan.checks import at_step, check_layout
from tests.engine.trainings import role

GROWING = Progressive(steps=10, stages=4, sequence=0.25, batch=0.25, dropout=0.5)


def train(**more: object) -> Train:
    sizes = {"global_batch": 16, "sequence": 128, "steps": 20, "progressive": GROWING}
    return Train.model_validate(sizes | more)


def test_all_grows_together_and_ends_whole() -> None:
    steps = range(12)
    for sizes in (
        [GROWING.sequence_at(step, 128) for step in steps],
        [GROWING.batch_at(step, 16) for step in steps],
        [GROWING.dropout_at(step) for step in steps],
        [GROWING.lr_at(step) for step in steps],
    ):
        assert sizes == sorted(sizes)
        assert sizes[0] < sizes[9] <= sizes[10] == sizes[11]
    assert (GROWING.sequence_at(0, 128), GROWING.batch_at(0, 16), GROWING.dropout_at(0)) == (32, 4, 0.5)
    assert (GROWING.sequence_at(10, 128), GROWING.batch_at(10, 16), GROWING.dropout_at(10)) == (128, 16, 1.0)
    assert GROWING.lr_at(10) == 1.0


def test_there_are_as_many_sizes_as_stages_and_the_whole_one() -> None:
    assert len({GROWING.sequence_at(step, 128) for step in range(20)}) == 5
    assert [GROWING.stage(step) for step in GROWING.first_steps(16)] == [0, 1, 2, 3, 4]


def test_samples_and_tokens_before_a_step_are_the_sums_of_the_steps() -> None:
    for step in range(25):
        batches = [GROWING.batch_at(at, 16) for at in range(step)]
        tokens = [GROWING.batch_at(at, 16) * GROWING.sequence_at(at, 128) for at in range(step)]
        assert GROWING.samples_before(step, 16) == sum(batches)
        assert GROWING.tokens_before(step, 16, 128) == sum(tokens)


@pytest.mark.parametrize("tokens", [100, 5_000, 20_000, 40_000])
def test_tokens_are_reached_with_the_last_step_and_not_before(tokens: int) -> None:
    how = train(steps=0, tokens=tokens)
    assert GROWING.tokens_before(how.num_steps, 16, 128) >= tokens
    assert GROWING.tokens_before(how.num_steps - 1, 16, 128) < tokens


def test_without_steps_nothing_grows() -> None:
    plain = train(progressive=Progressive())
    assert plain.at(0) is plain
    assert (Progressive().samples_before(7, 16), Progressive().lr_at(0)) == (112, 1.0)


def test_a_size_on_the_way_that_ranks_cannot_share_is_refused_with_its_step() -> None:
    with pytest.raises(ConfigError, match=r"step 0 4 sequences of 32 tokens"):
        check_layout(Parallel(shard=8), {"m": role()}, train())
    check_layout(Parallel(shard=2), {"m": role()}, train())


def test_a_micro_batch_shrinks_to_one_that_divides_the_small_batches() -> None:
    how = train(micro_batch=4)
    assert [at_step(how, Parallel(shard=2), step).micro_batch for step in (0, 5, 10)] == [2, 1, 4]
