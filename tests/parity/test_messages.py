"""Fused messages of sharded training (SE-MoE, 2205.10034, fusion communication): one for each block, whatever
its number of weights. It is FSDP2's work.
"""

import json
from pathlib import Path

import pytest

from tests.engine.trainings import TrainingSetup, role, train
from tests.forks import start_gang
from tests.parity.cases import layout, net

STEPS, LAYERS = 2, 4


@pytest.mark.slow
def test_a_block_s_weights_and_gradients_are_one_message_each(tmp_path: Path) -> None:
    setup = TrainingSetup(tmp_path)
    how = train(STEPS, precision="fp32", global_batch=4, micro_batch=2)
    where = layout(shard=2)
    run = setup.run_file(setup.training({"model": role(shape=net(LAYERS))}, how), layout=where)
    path = setup.folder / "run.json"
    path.write_text(run.model_dump_json(by_alias=True))
    start_gang("tests.parity.gang", tmp_path, 2, "tests.parity.messages", str(path))
    counted = json.loads((tmp_path / "messages.json").read_text())
    whole = STEPS * (LAYERS + 1)  # embedding, norm and head are one more
    assert counted["c10d::_reduce_scatter_base_"] == whole  # nine weights a block
    assert counted["c10d::_allgather_base_"] < 3 * whole  # of both passes, and of the evaluation
