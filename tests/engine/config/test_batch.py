"""The table of a batch's tensors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atelier.engine.config.batch import (
    LENGTHS,
    PLACES,
    TENSORS,
    batch_tensor,
    num_windows,
    unread,
    unread_note,
)
from atelier.engine.config.error import ConfigError


def test_the_dims_of_every_tensor_are_the_end_of_its_name() -> None:
    assert all(name.endswith(f"_{entry.dims}") for name, entry in TENSORS.items())
    wholes = [entry.whole for entry in TENSORS.values() if entry.whole]
    assert len(set(wholes)) == len(wholes) and not set(wholes) & set(TENSORS)
    assert set(PLACES) == set(LENGTHS)


def test_what_is_read_between_matrices_has_tokens() -> None:
    assert all(entry.length for entry in TENSORS.values() if entry.between or entry.whole)


def test_a_name_that_no_table_knows_is_one_line_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"batch.token_BT: unknown tensor; did you mean tokens_BT") as found:
        batch_tensor("token_BT")
    assert "\n" not in str(found.value)


@given(st.integers(0, 10**6), st.integers(1, 5000))
def test_windows_and_what_is_after_the_last_one_are_all_tokens(tokens: int, sequence: int):
    windows, rest = num_windows(tokens, sequence), unread(tokens, sequence)
    assert rest < sequence and windows * sequence + rest + (1 if tokens else 0) == tokens


def test_tokens_that_no_training_reads_are_said_from_a_hundredth_of_a_text_on():
    assert unread_note({"main/train": 1_000_001 + 9_000}, 10_000) == ""
    said = unread_note({"main/train": 1494, "main/held_out": 1025}, 512)
    assert said.startswith(
        "tokens after the last whole window of train.sequence=512 are never read: 469 of 1494 of"
    )
    assert "held_out" not in said
