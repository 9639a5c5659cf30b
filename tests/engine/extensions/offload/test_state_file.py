"""Expert states in a file: restored as written, and damage is found."""

import random
from pathlib import Path

import pytest
import torch

from atelier.engine.config.error import DamageError
from atelier.engine.extensions.offload.state_file import StateFile

SLOTS, FLOATS = 5, 1000


def written(folder: Path) -> tuple[StateFile, torch.Tensor]:
    file = StateFile(folder, SLOTS, FLOATS, torch.float32)
    states = torch.randn(SLOTS, FLOATS, generator=torch.Generator().manual_seed(0))
    for slot in range(SLOTS):
        file.write(slot, states[slot])
    return file, states


def test_a_state_is_read_as_it_was_written_and_seen_by_who_reads_all(tmp_path: Path) -> None:
    file, states = written(tmp_path)
    for slot in range(SLOTS):
        into = torch.empty(FLOATS)
        file.read(slot, into)
        assert torch.equal(into, states[slot])
    assert torch.equal(file.mapped()[:, :FLOATS], states)
    assert list(tmp_path.iterdir()) == []  # it has no name


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_state_is_found_and_named_and_the_others_are_read(tmp_path: Path, seed: int) -> None:
    file, states = written(tmp_path)
    draw = random.Random(seed)
    hurt, place = draw.randrange(SLOTS), draw.randrange(FLOATS)
    file.mapped()[hurt, place] += 1.0
    for slot in range(SLOTS):
        into = torch.empty(FLOATS)
        if slot != hurt:
            file.read(slot, into)
            assert torch.equal(into, states[slot])
            continue
        with pytest.raises(DamageError, match=f"expert state {hurt} on disk") as found:
            file.read(slot, into)
        assert "last checkpoint" in found.value.way_out


def test_what_was_filled_anew_is_trusted(tmp_path: Path) -> None:
    file, _ = written(tmp_path)
    file.mapped().fill_(2.0)
    file.forget()
    into = torch.empty(FLOATS)
    file.read(3, into)
    assert (into == 2.0).all()
