"""Weights in pieces on four ranks, gathered one at a time onto the first."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.checkout import TOP


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first of four ranks saw."""
    meeting = tmp_path_factory.mktemp("gang") / "meeting"
    script = [sys.executable, "-m", "tests.engine.loop.gathering", str(meeting)]
    gang = [
        subprocess.Popen(
            [*script, str(rank)], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(4)
    ]
    try:
        # what it said, not its exit code: gloo now and then aborts a process that has finished
        said = [process.communicate(timeout=120) for process in gang]
    finally:
        for process in gang:
            process.kill()
    assert said[0][0], [error for _, error in said]
    return json.loads(said[0][0])


@pytest.mark.slow
def test_a_weight_of_any_placement_arrives_whole_on_the_first_rank(seen: dict[str, Any]) -> None:
    assert seen["placements"] is True


def test_a_weight_split_by_shard_and_tensor_axes_arrives_whole(seen: dict[str, Any]) -> None:
    assert seen["nested"] is True


def test_every_stage_sends_its_weights_and_of_a_tied_one_the_first_stage(seen: dict[str, Any]) -> None:
    assert seen["stages"] is True


def test_a_role_that_the_first_rank_has_nothing_of_arrives_there(seen: dict[str, Any]) -> None:
    assert seen["last_only"] is True


def test_only_the_first_rank_makes_room_for_a_whole_weight(seen: dict[str, Any]) -> None:
    first, *others = seen["largest"].values()
    assert first == 64 * 16 and max(others) < 64 * 16 // 4


def test_of_replicas_one_sends(seen: dict[str, Any]) -> None:
    assert seen["messages"] == 2, "a box and its elements"
