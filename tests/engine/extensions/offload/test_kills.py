"""200 steps with 16 MB of expert states on disk and a quarter of them in memory, killed without warning 50
times: the same bits as an unkilled training in memory. ATELIER_SEED draws other moments.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from atelier.engine.config.experts import Experts
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.router.topk import TopK
from atelier.engine.config.run_file import Training
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from tests.engine.trainings import ONE, TrainingSetup, model, role, train

SEED = int(os.environ.get("ATELIER_SEED", "1"))
STEPS, EVERY, KILLS = 200, 4, 50
EXPERTS, HIDDEN, INNER, LAYERS = 8, 64, 336, 2
STATES = LAYERS * EXPERTS * 16 * 3 * HIDDEN * INNER  # bytes, with gradients
PATIENCE_S = 120.0


def training(setup: TrainingSetup) -> Training:
    experts = Experts(ffn=INNER, router=TopK(balance="bias"))
    shape = model(HIDDEN, num_layers=LAYERS, num_experts=EXPERTS, experts_per_token=1, experts=experts)
    how = train(STEPS, global_batch=2, micro_batch=1, sequence=8, checkpoint_every=EVERY)
    return setup.training({"model": role(shape=shape, lr=1e-2)}, how)


def run(setup: TrainingSetup, layout: Parallel, *, kill_at: int = 0, delay_s: float = 0.0) -> int:
    """Train on; kill once a checkpoint of `kill_at` is there and a moment has passed. The exit code."""
    [rank] = setup.processes(setup.run_file(training(setup), layout=layout))
    deadline = time.monotonic() + PATIENCE_S
    while kill_at and rank.poll() is None and max(setup.steps("model"), default=0) < kill_at:
        assert time.monotonic() < deadline, f"no checkpoint {kill_at} in {PATIENCE_S} s"
        time.sleep(0.002)
    if kill_at:
        time.sleep(delay_s)
        os.kill(rank.pid, signal.SIGKILL)
    rank.communicate(timeout=PATIENCE_S)
    assert rank.returncode is not None
    return rank.returncode


@pytest.mark.slow
def test_fifty_kills_change_no_bit(tmp_path: Path) -> None:
    assert 15e6 < STATES < 17e6
    whole, killed = TrainingSetup(tmp_path / "whole"), TrainingSetup(tmp_path / "killed")
    assert run(whole, ONE) == 0
    tiers = Tiers(experts="disk", host_gb=STATES / 4 / 1e9)
    layout, rng, codes = ONE.model_copy(update={"tiers": tiers}), random.Random(SEED), []
    print(f"ATELIER_SEED={SEED}")
    for number in range(KILLS):
        at = 1 + number * (STEPS - 2 * EVERY) // KILLS
        codes.append(run(killed, layout, kill_at=at, delay_s=rng.uniform(0.0, 0.1)))
    assert codes.count(-signal.SIGKILL) > 0.9 * KILLS
    assert run(killed, layout) == 0
    assert killed.weights("model") == whole.weights("model")
    assert killed.curve("model") == whole.curve("model")
