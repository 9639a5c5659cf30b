"""Bidirectional and causal rows with memory and soft prompts, in layouts of two."""

from pathlib import Path

from tests.forks import start_gang


def test_rows_of_both_kinds_give_the_same_sums_and_gradients_in_every_layout(tmp_path: Path) -> None:
    """Under shard each rank has rows of one kind alone. Differences end the gang with their names."""
    start_gang("tests.parity.rows", tmp_path, 2)
