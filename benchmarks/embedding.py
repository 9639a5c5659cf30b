"""An embedding split by columns over the data ranks beside a gathered one: memory of a rank and seconds a
step on two ranks, and plans for the setting of SE-MoE.

python benchmarks/embedding.py [--tiny]      six minutes, on a quiet machine of two cores

Here: 50304 x 384, with a separate head, over two small blocks. Each rank is bound to a core. All ways
alternate, three times, each time in another order; medians. The paper (2205.10034, table 4) has hidden 8192,
vocabulary 50304, 4 experts: 15.81 GB a GPU without and 8.63 GB with it. It does not say how many blocks and
GPUs, which precisions, nor how the other weights are shared. So only its embedding is planned, on 8 GPUs, in
this project's arithmetic.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]  # for tests/
from machine import keep, use_own_code
from pinned import in_turns, timings, two_cores

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import estimate
from tests.engine.trainings import TrainingSetup, role, tokens, train

VOCAB, WARM, TURNS = 50304, 6, 3
WAYS: dict[str, dict[str, Any]] = {
    "zero=1, gathered": {"zero": 1},
    "zero=1, columns": {"zero": 1, "embedding": "columns"},
    "zero=3, gathered": {"zero": 3},
    "zero=3, columns": {"zero": 3, "embedding": "columns"},
}

use_own_code()


SHAPE = GPT(num_layers=2, hidden=384, num_heads=6, vocab=VOCAB, tied=False)


def how(steps: int) -> Train:
    return train(steps, global_batch=8, micro_batch=2, sequence=128, checkpoint_every=1000, eval_sequences=1)


def measure(folder: Path, way: str, steps: int, cores: list[int]) -> dict[str, float]:
    setup = TrainingSetup(folder, {"tokens": tokens(folder / "tokens", vocab=VOCAB)})
    layout = Parallel(shard=2, threads=1, compile="none", device="cpu", **WAYS[way])
    run = setup.run_file(setup.training({"model": role(shape=SHAPE)}, how(steps)), layout=layout)
    times = timings(folder, run, cores)
    return {
        "step_s": statistics.median(timing["step_s"] for timing in times[WARM:]),
        "memory_gb": times[-2]["memory_gb"],  # the last one may be writing its checkpoint
    }


def planned() -> dict[str, dict[str, float]]:
    """Memory of a rank, GB: of what is measured here; of a model with the paper's embedding and one block, on
    8 GPUs.
    """
    paper = GPT(num_layers=1, hidden=8192, num_heads=64, vocab=VOCAB, tied=False, num_experts=4)
    eight = train(100, global_batch=8, micro_batch=1, sequence=1024, precision="bf16")
    found = {}
    for way, options in WAYS.items():
        here = Parallel(shard=2, threads=1, compile="none", device="cpu", **options)
        gpus = Pool(gpu="a100", gpus=8)
        found[way] = {
            "here": round(estimate(role(shape=SHAPE), how(24), here, Pool(), VOCAB).memory_gb, 3),
            "8 GPUs": round(
                estimate(role(shape=paper), eight, Parallel(shard=8, **options), gpus, VOCAB).memory_gb, 2
            ),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a minute: tries the script, shows nothing")
    chosen = parser.parse_args()
    cores = two_cores()
    steps, turns = (WARM + 3, 1) if chosen.tiny else (24, TURNS)
    found, medians = in_turns(WAYS, turns, lambda way, folder: measure(folder, way, steps, cores))
    numbers = {"runs": found, "medians": medians, "planned, GB": planned()}
    for way, plan in planned().items():
        print("planned:", way, plan)
    keep("embedding", numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
