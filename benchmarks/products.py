"""An hour of random products of models, objectives, trainings and layouts, each in a gang beside one process:
python benchmarks/products.py [minutes] [--seed N] [--inference]

Required: in float64 all metric values equal to 1e-10 and weights to 1e-8, in float32 the first step's losses
to 1e-5, in bf16 to 1e-4. A third resumes from a checkpoint in a second layout. Each product that fails is
printed whole; `python -m tests.parity.trials --only NAME` tries it again.

With `--inference` models and layouts of inference: likelihoods to 1e-10 (float32: 1e-4), greedy and drawn
texts equal in float64; `python -m tests.parity.inference_trials --only NAME`.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]  # for tests/
from machine import keep, use_own_code

from tests.parity import inference_trials, trials

use_own_code()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("minutes", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--inference", action="store_true", help="scores and texts in place of trainings")
    asked = parser.parse_args()
    try_for = inference_trials.try_for if asked.inference else trials.try_for
    with tempfile.TemporaryDirectory(prefix="products-") as folder:
        found = try_for(60 * asked.minutes, asked.seed, Path(folder))
    numbers = {
        "seed": asked.seed,
        "minutes": asked.minutes,
        "tried_by_ranks": dict(sorted(found.tried.items())),
        "wrong": found.failures,
        "largest_distance": dict(sorted(found.worst.items())),
    }
    keep("products_inference" if asked.inference else "products", numbers, is_trial=asked.minutes < 60)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
