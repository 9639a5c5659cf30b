"""float8 products, emulated on CPUs, on the axes that the plan allows, with recomputation and compilation."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.trainings import TrainingSetup, role, train
from tests.forks import start_gang
from tests.parity.cases import layout, net

STEPS = 3
HOW: dict[str, Any] = {"precision": "fp8", "global_batch": 8, "micro_batch": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "axes",
    [
        {"shard": 2, "recompute": "selective"},
        {"pipeline": 2, "schedule": "interleaved", "recompute": "full"},
        {"context": 2, "compile": "block", "recompute": "selective"},
        {"pipeline": 2, "compile": "block", "recompute": "selective"},
    ],
    ids=str,
)
def test_losses_in_float8_are_those_of_one_device_up_to_rounding(
    axes: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("torchao", reason="torchao is missing: it is of the extra fp8")
    losses = []
    for name, where in (("alone", layout()), ("gang", layout(**axes))):
        setup = TrainingSetup(tmp_path / name)
        roles = {"teacher": role(shape=net(tied=False, ffn=64), lr=1e-2)}
        run = setup.run_file(setup.training(roles, train(STEPS, **HOW)), layout=where)
        path = setup.folder / "run.json"
        path.write_text(run.model_dump_json(by_alias=True))
        start_gang("tests.parity.gang", tmp_path, where.ranks, "tests.parity.float8", str(path))
        losses.append([line["values"]["loss"] for line in setup.curve("teacher")])
    assert max(abs(mine - other) for mine, other in zip(*losses, strict=True)) < 1e-2
