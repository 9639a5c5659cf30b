"""The table of a batch's tensors."""

import pytest

from atelier.engine.config.batch import LENGTHS, PLACES, TENSORS, batch_tensor
from atelier.engine.config.error import ConfigError


def test_the_dims_of_every_tensor_are_the_end_of_its_name() -> None:
    assert all(name.endswith(f"_{entry.dims}") for name, entry in TENSORS.items())
    wholes = [entry.whole for entry in TENSORS.values() if entry.whole]
    assert len(set(wholes)) == len(wholes) and not set(wholes) & set(TENSORS)
    assert set(PLACES) == set(LENGTHS)


def test_what_is_read_between_matrices_has_tokens() -> None:
    assert all(entry.length for entry in TENSORS.values() if entry.between or entry.whole)


def test_a_name_that_no_table_knows_is_one_line_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"batch.token_BT: no table knows.*did you mean tokens_BT") as found:
        batch_tensor("token_BT")
    assert "\n" not in str(found.value)
