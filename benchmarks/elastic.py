"""Assignment of samples to two ranks, with four workloads of 512, 256, 128 and 128 tokens a row in equal
numbers: the share of the ranks' time that one waits for the other, and seconds a step.

python benchmarks/elastic.py [--tiny]      ten minutes, on a quiet machine of two cores

paired: workloads 1 and 2 on one rank, 3 and 4 on the other, like one task a device; rows: as many rows of any
kind on each, padded to 512 tokens; static: equal predicted cost; measured: corrected by the ranks' pace;
slower: the last two again while another process takes half of rank 1's core. Each rank is bound to a core of
its own. All ways alternate, three times, each time in another order; medians.

Also, by plan alone, the four tasks of SE-MoE (2205.10034: 512, 256, 128 and 128 samples on 4 devices, then on
8).
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]  # for tests/
import numpy as np
from machine import keep, use_own_code
from pinned import busy, in_turns, timings, two_cores

from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.parallel import Parallel
from atelier.engine.extensions.assignment.hook import Workload, assign, costs_of
from atelier.engine.loop.straggler import idle_share
from tests.engine.row_inputs import VOCAB, harbour
from tests.engine.trainings import TrainingSetup, role, train

TURNS, WARM = 3, 12
PAIRED = ((0, 3.0, 1.0),)
# how samples are assigned, whether a process is in the way
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "rows": ({"assignment": "rows"}, False),
    "paired": ({"assignment": "static", "speed_log": PAIRED}, False),
    "static": ({"assignment": "static"}, False),
    "measured": ({"assignment": "measured"}, False),
    "slower: static": ({"assignment": "static"}, True),
    "slower: measured": ({"assignment": "measured"}, True),
}
ROWS = {
    "document": DocumentLM(memory=0),
    "mlm": MLM(sequence=256),
    "reorder": Reorder(weight=0.1, sequence=128),
    "distance": Distance(weight=0.1, sequence=128),
}

use_own_code()


def shape() -> Ernie:
    net = Net(num_layers=1, hidden=128, num_heads=4)
    heads = {"reorder": 9, "distance": 3}
    return Ernie(num_layers=3, hidden=192, num_heads=4, vocab=VOCAB, nlu=net, nlg=net, classes=heads)


def measure(folder: Path, inputs: dict[str, str], way: str, steps: int, cores: list[int]) -> dict[str, float]:
    """Median seconds of a step, and the idle share at the end."""
    assigned, is_slowed = WAYS[way]
    setup = TrainingSetup(folder, inputs)
    how = train(steps, global_batch=16, micro_batch=2, sequence=512, checkpoint_every=1000, eval_sequences=1)
    layout = Parallel(shard=2, zero=1, threads=1, compile="none", device="cpu", **assigned)
    run = setup.run_file(setup.training({"model": role(shape=shape(), objective=ROWS)}, how), layout=layout)
    with busy(cores[1]) if is_slowed else nullcontext():
        times = timings(folder, run, cores)
    return {
        "step_s": statistics.median(timing["step_s"] for timing in times[WARM:]),
        "tokens_per_s": statistics.median(timing["tokens_per_s"] for timing in times[WARM:]),
        "idle_share": times[-1]["idle_share"],
    }


def planned() -> dict[str, dict[str, float]]:
    """Idle shares of the paper's four tasks, of equal rows: with whole devices for each task, and by cost."""
    tasks = (512, 256, 128, 128)
    sets = np.repeat(range(4), tasks)
    kinds = [Workload(1, 1.0, 512)] * 4
    found = {}
    for devices in (2, 4, 8):
        if devices == 2:
            each = [tasks[0] + tasks[1], tasks[2] + tasks[3]]
        else:
            each = [task / (devices // 4) for task in tasks for _ in range(devices // 4)]
        times = costs_of(assign(sets, kinds, [1.0] * devices), sets, kinds)
        found[f"{devices} devices"] = {
            "one task a device, idle": round(idle_share(each), 4),
            "by cost, idle": round(idle_share(times), 4),
            "step time by cost / one task a device": round(max(times) / max(each), 4),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="two minutes: tries the script, shows nothing")
    chosen = parser.parse_args()
    cores = two_cores()
    steps, turns = (WARM + 4, 1) if chosen.tiny else (44, TURNS)
    with tempfile.TemporaryDirectory() as shared:
        inputs = harbour(Path(shared) / "harbour")
        found, medians = in_turns(WAYS, turns, lambda way, folder: measure(folder, inputs, way, steps, cores))
    numbers: dict[str, Any] = {"runs": found, "medians": medians, "planned": planned()}
    for devices, shares in planned().items():
        print(devices, shares)
    keep("elastic", numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
