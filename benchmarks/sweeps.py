"""Successive halving beside the full grid over the same points: steps and CPU seconds of training, and
whether it keeps the grid's best.

python benchmarks/sweeps.py [--steps 320] [--store DIR] [--tiny]      some minutes

Both are `atelier pretrain -m` over eight learning rates, each in a store of its own to which the same tokens
were copied.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code
from parts import steps_computed

RATES = "1e-4,3e-4,1e-3,3e-3,1e-2,3e-2,1e-1,3e-1"
FIXED = ("experiment=tiny", "tracker=none", "score.baselines=false", "score.max_tokens=2000")
DATA = ("corpus", "tokenizer", "tokens")

use_own_code()


def run(root: Path, *words: str) -> float:
    """`atelier <words>`; CPU seconds of it and of everything that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "atelier", *words],
        env=os.environ | {"ATELIER_ROOT": str(root)},
        cwd=PROJECT,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def sweep(root: Path, *words: str) -> dict[str, Any]:
    """What a sweep over the learning rates cost and found."""
    cpu_s = run(root, "pretrain", "-m", *FIXED, f"optim.lr={RATES}", *words)
    [folder] = (root / "sweeps").glob("*/points")
    points = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    done = [point for point in points if point["state"] == "done"]
    best = min(done, key=lambda point: point["value"])
    return {
        "steps_trained": steps_computed(each.parent for each in root.glob("trajectory/*/metrics")),
        "cpu_s": round(cpu_s, 1), "points_to_the_end": len(done),
        "best_value": best["value"],
        "best_words": best["words"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--tiny", action="store_true", help="two minutes: tries the script, shows nothing")
    chosen = parser.parse_args()
    steps = 64 if chosen.tiny else chosen.steps
    base = chosen.store or Path(tempfile.mkdtemp(prefix="atelier-sweeps-"))
    run(base / "data", "corpus", "experiment=tiny", "tracker=none")
    found: dict[str, Any] = {"steps": steps}
    length = (
        f"train.steps={steps}",
        f"train.eval_every={steps // 8}",
        f"train.checkpoint_every={steps // 8}",
    )
    for name, words in (("grid", ()), ("halving", ("hydra/sweeper=halving", "hydra.sweeper.rungs=3"))):
        for kind in DATA:
            shutil.copytree(base / "data" / kind, base / name / kind, dirs_exist_ok=True)
        found[name] = sweep(base / name, *length, *words)
    grid, halving = found["grid"], found["halving"]
    found |= {
        "steps ratio": round(halving["steps_trained"] / grid["steps_trained"], 3),
        "cpu ratio": round(halving["cpu_s"] / grid["cpu_s"], 3),
        "goal": 0.6,
        "keeps the best": grid["best_words"] == halving["best_words"],
    }
    keep("sweeps", found, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
