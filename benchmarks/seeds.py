"""The demo for several seeds: every student below its same-seed control, every fine-tuned one above scratch,
each time.

python benchmarks/seeds.py [--seeds 1 2 3] [--store DIR]      about as long as the demo, a seed; finished
seeds are reused
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

use_own_code()


def table(root: Path, seed: int) -> list[dict[str, Any]]:
    """Rows of the report of one seed's run."""
    command = ["titan", "experiment=laptop", "tracker=none", f"train.seed={seed}"]
    env = os.environ | {"ATELIER_ROOT": str(root)}
    before = {path.name for path in (root / "runs").glob("*.json")} if root.exists() else set()
    subprocess.run([sys.executable, "-m", "atelier", *command], env=env, cwd=PROJECT, check=True)
    [path] = [path for path in (root / "runs").glob("*.json") if path.name not in before]
    [report] = [task for task in json.loads(path.read_text())["tasks"] if task["kind"] == "report"]
    record = json.loads((root / "report" / report["fingerprint"][:16] / "record.json").read_text())
    return record["summary"]["table"]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    text = {row["name"]: round(row["bits_per_byte"], 4) for row in rows if "bits_per_byte" in row}
    deltas = {row["name"]: round(row["delta"], 4) for row in rows if "delta" in row}
    tuned = {
        row["name"]: {
            "accuracy": round(row["accuracy"], 4),
            "above_scratch": round(row["accuracy_delta"], 4),
            "interval": round(row["accuracy_delta_interval"], 4),
        }
        for row in rows
        if "accuracy_delta" in row
    }
    majority = next(row["accuracy"] for row in rows if row["name"] == "majority class")
    return {
        "bits_per_byte": text,
        "nats_below_control": deltas,
        "fine_tuned": tuned,
        "majority": round(majority, 4),
        "holds": {
            "teacher below xz": text["teacher"] < text["xz -9e"],
            "students below their controls": all(delta < 0 for delta in deltas.values()),
            "fine-tuned above majority": all(one["accuracy"] > majority for one in tuned.values()),
            "fine-tuned above scratch beyond the interval": all(
                one["above_scratch"] > one["interval"] for one in tuned.values()
            ),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--store", type=Path, default=Path(".atelier"))
    chosen = parser.parse_args()
    keep("seeds", {f"seed {seed}": summary(table(chosen.store.absolute(), seed)) for seed in chosen.seeds})


if __name__ == "__main__":
    main()
