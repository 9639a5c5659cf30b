"""Weights that are gathered in 16 bits: the residual stream has 32 bits, as on one device."""

from pathlib import Path

import pytest
import torch

from atelier.engine.model.placement import has_half
from tests.engine.trainings import TrainingSetup, role, train
from tests.forks import start_gang
from tests.parity.cases import layout, net

STEPS = 3


@pytest.mark.skipif(not has_half(torch.device("cpu")), reason="this CPU has no products of bfloat16")
@pytest.mark.parametrize(
    "axes",
    [
        {"shard": 2},
        pytest.param({"shard": 2, "pipeline": 2}, marks=pytest.mark.slow),
        pytest.param({"shard": 2, "tensor": 2}, marks=pytest.mark.slow),
        pytest.param({"shard": 4, "embedding": "columns"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_losses_are_those_of_one_device_up_to_what_16_bits_round(
    axes: dict[str, int], tmp_path: Path
) -> None:
    alone, gang = TrainingSetup(tmp_path / "alone"), TrainingSetup(tmp_path / "gang")
    roles = {"teacher": role(shape=net(tied=False, dropout=0.1), lr=1e-2)}
    how = train(STEPS, precision="bf16", global_batch=8, micro_batch=1)
    alone.train(alone.training(roles, how))
    where = layout(**axes)
    path = gang.folder / "run.json"
    path.write_text(gang.run_file(gang.training(roles, how), layout=where).model_dump_json(by_alias=True))
    start_gang("tests.parity.gang", tmp_path, where.ranks, "tests.parity.gathered_in_half", str(path))
    losses = [[line["values"]["loss"] for line in each.curve("teacher")] for each in (alone, gang)]
    print(losses)
    assert max(abs(mine - other) for mine, other in zip(*losses, strict=True)) < 2e-3
    assert losses[0][-1] < losses[0][0] - 0.1
