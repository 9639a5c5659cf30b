"""`make demo` or `make titan` for several seeds: minutes, and whether its claims hold each time: the teacher
below the trigram of the whole training text, every student below xz (titan) and 0.2 nats below its same-seed
control, every fine-tuned model above its own zero-shot score (titan).

python benchmarks/seeds.py [demo|titan] [--seeds 1 2 3] [--store DIR]     one store a seed; finished seeds are
reused, with the minutes that they took (DIR/minutes-<seed>)
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


COMMANDS = {"demo": ["distill", "experiment=demo"], "titan": ["titan", "experiment=laptop"]}
RESULTS = {"demo": "demo", "titan": "seeds"}  # benchmarks/results/<name>.json


def table(root: Path, seed: int, command: list[str]) -> list[dict[str, Any]]:
    """Rows of the report of one seed's run."""
    before = {path.name for path in (root / "runs").glob("*.json")} if root.exists() else set()
    run_flow(root, [*command, f"train.seed={seed}"])
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
    holds = {
        "teacher 0.02 below the trigram": text["teacher"] <= trigram - 0.02,
        "students below xz": all(text[name] < xz for name in deltas),
        "students 0.2 nats below their controls": all(delta <= -0.2 for delta in deltas.values()),
    }
    if tuned:
        holds["fine-tuned above zero-shot"] = all(
            accuracy[f"{name} fine-tuned"] > accuracy[f"{name} zero-shot"] for name in tuned
        )
        holds["fine-tuned above the majority"] = all(
            accuracy[f"{name} fine-tuned"] > accuracy["majority class"] for name in tuned
        )
    return {
        "minutes": minutes and round(minutes, 1),  # None: it was cut off once
        "bits_per_byte": text,
        "nats_below_control": deltas,
        "accuracy": accuracy,
        "holds": holds,
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
    parser.add_argument("flow", nargs="?", choices=COMMANDS, default="demo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--store", type=Path, default=Path("demo-seeds"))
    chosen = parser.parse_args()
    found = {}
    for seed in chosen.seeds:
        root, taken = chosen.store.absolute() / f"seed-{seed}", chosen.store.absolute() / f"minutes-{seed}"
        began, is_new = time.monotonic(), not root.exists()
        rows = table(root, seed, COMMANDS[chosen.flow])
        if is_new:
            taken.write_text(f"{(time.monotonic() - began) / 60:.2f}\n")
        found[f"seed {seed}"] = summary(rows, float(taken.read_text()) if taken.exists() else None)
        keep(RESULTS[chosen.flow], {"over_seeds": over_seeds(list(found.values()))} | found)


if __name__ == "__main__":
    main()
