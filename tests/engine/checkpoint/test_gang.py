"""Checkpoints of gangs: one gang of four gloo processes runs the scenarios of gang.py; the results are
checked here.
"""

import json
from typing import Any

import pytest

from tests.forks import start_gang

WORLD = 4


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = tmp_path_factory.mktemp("gang")
    start_gang("tests.parity.gang", folder, WORLD, "tests.engine.checkpoint.gang", str(folder))
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(WORLD)]


def test_fsdp_model_and_adamw_move_bit_exactly_between_1_2_and_4_ranks(seen: list[dict[str, Any]]) -> None:
    for rank, world in ((0, 1), (1, 2), (2, 4), (3, 4)):
        result = seen[rank]["reshard"]
        for source in (1, 2, 4):
            for target in (1, 2, 4):
                if target >= world:
                    assert result[f"{source} -> {target}"] is True, (rank, source, target)
        assert all(value for name, value in result.items() if name.startswith("saved by"))
    assert [f"saved by {n}" in seen[0]["reshard"] for n in (1, 2, 4)] == [True] * 3


def test_any_placement_loads_into_any_other_and_replicas_are_written_once(seen: list[dict[str, Any]]) -> None:
    tensor_bytes = 7 * 9 * 4 + 3 * 2 * 6 * 8 + 8 * 8 * 2
    for rank in range(WORLD):
        result = seen[rank]["placements"]
        assert sum(value is True for value in result.values()) == 16
        assert not any(value is False for value in result.values())
        sizes = [value for name, value in result.items() if name.endswith("bytes")]
        assert all(tensor_bytes < size < tensor_bytes + WORLD * 400 for size in sizes)


def test_fsdp_over_tensor_parallel_saves_and_loads_the_whole_weights(seen: list[dict[str, Any]]) -> None:
    for result in seen:
        assert result["tensor_parallel"]["saved"] and result["tensor_parallel"]["loaded"]


def test_changing_sharded_weights_while_saving_changes_nothing_in_the_checkpoint(
    seen: list[dict[str, Any]],
) -> None:
    for result in seen:
        assert result["train_on"]["early"] is False
        assert result["train_on"]["changes"] > 10
        assert result["train_on"]["same"] is True


def test_an_error_on_one_rank_is_raised_on_all_and_leaves_the_earlier_checkpoint_alone(
    seen: list[dict[str, Any]],
) -> None:
    for result in (rank["failures"] for rank in seen):
        assert "No space left on device" in result["disk full"] and "rank-0001" in result["disk full"]
        assert result["nan"].startswith("ConfigError: loss: is NaN")
        assert result["conflict"].startswith(
            "ConfigError: seed: differs between ranks: 0 on rank 0, 1 on rank 1"
        )
        assert result["steps"] == [1] and result["left"] == ["step-00000001"] and result["verify"] == []


def test_damage_that_one_rank_reads_is_raised_on_all_and_names_the_file(seen: list[dict[str, Any]]) -> None:
    damaged = seen[0]["failures"]["damaged"]
    for rank in seen:
        assert rank["failures"]["damage"].startswith(f"DamageError: {damaged}: ")
        assert "has no tensor v" in rank["failures"]["lacking"]


def test_each_rank_gets_its_own_values_and_tensors_back(seen: list[dict[str, Any]]) -> None:
    expected = {f"rank.{rank}.seed": rank * 10 for rank in range(WORLD)} | {"x": 0.1}
    for rank, result in enumerate(seen):
        assert result["per_rank"]["values"] == {"role": expected}
        assert result["per_rank"]["tensor"] == [rank] * 3
