"""Seconds a step of a pipeline of two ranks, one on a slower device: with equally many blocks on each, and
with the cut that `parallel.speeds` makes (2112.12731, section 4.2).

python benchmarks/uneven_pipeline.py [--tiny]      ten minutes, on a quiet machine of two cores

The slower device is simulated: each rank is bound to a core of its own, and another process takes half of the
second core. All ways alternate, three times, each time in another order; medians of the steps after the first
eight.
"""

import argparse
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]  # for tests/
from machine import keep, use_own_code
from pinned import busy, in_turns, timings, two_cores

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from tests.engine.trainings import TrainingSetup, role, train

SPEEDS, WARM, TURNS = (1.0, 0.5), 8, 3
WAYS: dict[str, tuple[bool, tuple[float, ...]]] = {  # whether a process is in the way; speeds given
    "alike: equal cut": (False, ()),
    "one slower: equal cut": (True, ()),
    "one slower: cut by speeds": (True, SPEEDS),
}

use_own_code()


def measure(folder: Path, way: str, steps: int, cores: list[int]) -> dict[str, float]:
    """Median seconds of a step of this pipeline."""
    is_slowed, speeds = WAYS[way]
    setup = TrainingSetup(folder)
    shape = GPT(num_layers=12, hidden=128, num_heads=4, vocab=64)
    how = train(steps, global_batch=16, micro_batch=2, sequence=128, checkpoint_every=1000)
    layout = Parallel(shard=1, pipeline=2, speeds=speeds, threads=1, compile="none", device="cpu")
    run = setup.run_file(setup.training({"model": role(shape=shape)}, how), layout=layout)
    with busy(cores[1]) if is_slowed else nullcontext():
        steps_s = [timing["step_s"] for timing in timings(folder, run, cores)]
    return {"step_s": statistics.median(steps_s[WARM:])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a minute: tries the script, shows nothing")
    chosen = parser.parse_args()
    cores = two_cores()
    steps, turns = (12, 1) if chosen.tiny else (60, TURNS)
    found, medians = in_turns(WAYS, turns, lambda way, folder: measure(folder, way, steps, cores))
    slower = [medians[f"one slower: {cut}"]["step_s"] for cut in ("cut by speeds", "equal cut")]
    numbers: dict[str, Any] = {
        "runs": found, "medians": medians, "speeds": SPEEDS,
        "cut by speeds / equal cut": round(slower[0] / slower[1], 4),
    }  # fmt: skip
    keep("uneven_pipeline", numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
