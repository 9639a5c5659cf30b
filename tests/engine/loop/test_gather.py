"""Weights in pieces on four ranks, gathered one at a time onto the first."""

import json
from typing import Any

import pytest

from tests.forks import gang_errors


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first of four ranks saw."""
    folder = tmp_path_factory.mktemp("gang")
    # what it found, not its exit code: gloo now and then aborts a process that has finished
    told = gang_errors("tests.engine.loop.gathering", folder, 4, str(folder))
    assert (folder / "found.json").exists(), told
    return json.loads((folder / "found.json").read_text())


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
