"""The demo for several seeds: minutes, and whether its signs hold each time: the teacher below the trigram,
every student below xz and 0.2 nats below its same-seed control, every fine-tuned model above itself asked
zero-shot.

python benchmarks/seeds.py [--seeds 1 2 3] [--store DIR]      about as long as the demo, a seed, each in a
store of its own; finished seeds are reused, with the minutes that they took once (DIR/minutes-<seed>)
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code
from parts import interval, run_flow

use_own_code()


def table(root: Path, seed: int) -> list[dict[str, Any]]:
    """Rows of the report of one seed's run."""
    before = {path.name for path in (root / "runs").glob("*.json")} if root.exists() else set()
    run_flow(root, ["titan", "experiment=laptop", f"train.seed={seed}"])
    [path] = [path for path in (root / "runs").glob("*.json") if path.name not in before]
    [report] = [task for task in json.loads(path.read_text())["tasks"] if task["kind"] == "report"]
    record = json.loads((root / "report" / report["fingerprint"][:16] / "record.json").read_text())
    return record["summary"]["table"]


def summary(rows: list[dict[str, Any]], minutes: float | None) -> dict[str, Any]:
    text = {row["name"]: round(row["bits_per_byte"], 4) for row in rows if "bits_per_byte" in row}
    deltas = {row["name"]: round(row["delta"], 4) for row in rows if "delta" in row}
    accuracy = {row["name"]: round(row["accuracy"], 4) for row in rows if "accuracy" in row}
    tuned = {name.removesuffix(" fine-tuned") for name in accuracy if name.endswith(" fine-tuned")}
    xz, trigram = text["xz -9e"], text["interpolated trigram"]
    return {
        "minutes": minutes and round(minutes, 1),  # None: it was cut off once
        "bits_per_byte": text,
        "nats_below_control": deltas,
        "accuracy": accuracy,
        "holds": {
            "teacher 0.02 below the trigram": text["teacher"] <= trigram - 0.02,
            "students below xz": all(text[name] < xz for name in deltas),
            "students 0.2 nats below their controls": all(delta <= -0.2 for delta in deltas.values()),
            "fine-tuned above zero-shot": all(
                accuracy[f"{name} fine-tuned"] > accuracy[f"{name} zero-shot"] for name in tuned
            ),
            "fine-tuned above the majority": all(
                accuracy[f"{name} fine-tuned"] > accuracy["majority class"] for name in tuned
            ),
        },
    }


def over_seeds(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and interval over the seeds of the teacher's lead on the trigram and of what students gained."""
    lead = [one["bits_per_byte"]["interpolated trigram"] - one["bits_per_byte"]["teacher"] for one in seeds]
    found = {"teacher's bits below the trigram": lead}
    for name in seeds[0]["nats_below_control"]:
        found[f"{name}, nats below its control"] = [-one["nats_below_control"][name] for one in seeds]
    return {
        what: {"mean": round(statistics.mean(values), 4), "interval": interval(values)}
        for what, values in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--store", type=Path, default=Path("demo-seeds"))
    chosen = parser.parse_args()
    found = {}
    for seed in chosen.seeds:
        root, taken = chosen.store.absolute() / f"seed-{seed}", chosen.store.absolute() / f"minutes-{seed}"
        began, is_new = time.monotonic(), not root.exists()
        rows = table(root, seed)
        if is_new:
            taken.write_text(f"{(time.monotonic() - began) / 60:.2f}\n")
        found[f"seed {seed}"] = summary(rows, float(taken.read_text()) if taken.exists() else None)
        keep("seeds", {"over_seeds": over_seeds(list(found.values()))} | found)


if __name__ == "__main__":
    main()
