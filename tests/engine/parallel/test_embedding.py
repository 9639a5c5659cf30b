"""The embedding split by columns: rows and gradients equal those of the whole one, which no rank holds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.manifest import read_manifest
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from tests.engine.parallel.embedding_gang import D, T, V, tokens_of
from tests.engine.parallel.gangs import gang
from tests.engine.trainings import ONE, TrainingSetup, laid_out, role, student, train

BYTES = 8


@pytest.mark.slow
def test_columns_give_the_rows_and_gradients_of_the_whole(tmp_path: Path) -> None:
    """A rank sends its columns of the others' tokens forward, and the others' columns of its own backward."""
    layout = Parallel(shard=2, expert=2, threads=1, device="cpu")
    size = layout.ranks
    found = gang("embedding_gang", tmp_path / "four", layout, per_node=1)
    counts = [tokens_of(rank).numel() for rank in range(size)]
    for rank, one in enumerate(found):
        assert torch.equal(one["rows"], one["expected"])
        assert tuple(one["held"]) == (V, D // size)
        columns = one["whole"][:, rank * D // size : (rank + 1) * D // size]
        torch.testing.assert_close(one["gradient"], columns, rtol=1e-12, atol=1e-12)
        assert one["messages"] == 2 * (size - 1)
        others = sum(counts) - counts[rank]
        assert one["bytes"] == (others + counts[rank] * (size - 1)) * D // size * BYTES
    assert T in found[0]["rows"].shape


def widths(setup: TrainingSetup, name: str) -> set[int]:
    """Of what ranks held of the embedding at step 2."""
    place = address(str(setup.folder / "trajectory" / name / "checkpoints"), 2)
    return {chunk.shape[1] for chunk in read_manifest(place, step=2).tensors["weights.embed.weight"].chunks}


@pytest.mark.parametrize(
    "layout",
    [
        {"shard": 2},
        pytest.param(
            {"shard": 2, "zero": 1, "assignment": "static", "speed_log": ((0, 1.0, 3.0),)},
            marks=pytest.mark.slow,
        ),
        pytest.param({"replicate": 2, "shard": 2}, marks=pytest.mark.slow),
        {"expert": 2, "shard": 1},
        pytest.param({"context": 2, "pipeline": 2, "shard": 1}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_training_is_the_same_and_goes_on_elsewhere(tmp_path: Path, layout: dict[str, Any]) -> None:
    one, other = TrainingSetup(tmp_path / "one"), TrainingSetup(tmp_path / "other")
    shape = {"tied": False, "num_heads": 2, "vocab": 64}
    roles = {
        "teacher": role(shape=GPT(num_layers=2, hidden=32, num_experts=2, **shape), lr=1e-2),
        "student": student(shape=GPT(num_layers=1, hidden=16, **shape)),
    }
    how = train(6, precision="fp64", checkpoint_every=2, global_batch=8, keep=6)
    one.train(one.training(roles, how))
    place = laid_out(**layout, embedding="columns")
    half = how.model_copy(update={"steps": 4})
    for settings, each in ((half, place), (how, ONE)):
        run = other.run_file(other.training(roles, settings), layout=each)
        ranks = other.processes(run, world=each.ranks)
        said = [rank.communicate(timeout=300) for rank in ranks]
        assert not any(rank.returncode for rank in ranks), said
    for name, one_role in roles.items():
        assert widths(other, name) == {one_role.model.hidden // place.embedding_ranks}
        for line, beside in zip(one.curve(name), other.curve(name), strict=True):
            assert beside["values"] == pytest.approx(line["values"], rel=1e-10, abs=1e-12)
