"""Blocks divided over pipeline stages by their cost and the speed of each device."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.config.error import ConfigError
from atelier.engine.plan.partition import partition


def test_equal_blocks_and_devices_get_equal_stages() -> None:
    assert partition([1.0] * 8, num_stages=4) == (2, 2, 2, 2)
    assert sorted(partition([1.0] * 7, num_stages=3)) == [2, 2, 3]


def test_a_stage_with_a_head_or_students_gets_fewer_blocks() -> None:
    assert partition([1.0] * 8, num_stages=2, after=2.0) == (5, 3)
    assert partition([1.0] * 8, num_stages=2, after=100.0) == (7, 1)


def test_a_device_of_half_the_speed_gets_half_the_blocks() -> None:
    assert partition([1.0] * 12, num_stages=3, speeds=(1.0, 0.5, 1.0)) == (5, 2, 5)


def test_uneven_blocks_are_balanced_by_cost_not_by_number() -> None:
    assert partition([4.0, 1.0, 1.0, 1.0, 1.0], num_stages=2) == (1, 4)


@given(
    costs=st.lists(st.integers(1, 9), min_size=3, max_size=8),
    speeds=st.tuples(*[st.sampled_from((0.5, 1.0, 2.0))] * 3),
    after=st.integers(0, 9),
)
def test_no_other_partition_has_a_faster_slowest_stage(
    costs: list[int], speeds: tuple[float, ...], after: int
) -> None:
    def slowest(cuts: tuple[int, ...]) -> float:
        bounds = (0, *cuts, len(costs))
        sums = [sum(costs[a:b]) for a, b in pairwise(bounds)]
        sums[-1] += after
        return max(cost / speed for cost, speed in zip(sums, speeds, strict=True))

    counts = partition(costs, num_stages=3, speeds=speeds, after=after)
    assert sum(counts) == len(costs) and min(counts) >= 1
    best = min(slowest(cuts) for cuts in combinations(range(1, len(costs)), 2))
    assert slowest((counts[0], counts[0] + counts[1])) == best


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.pipeline: 3 stages, but 2 blocks"):
        partition([1.0, 1.0], num_stages=3)
