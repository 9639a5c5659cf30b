"""chrF of the student of `nebula` over several seeds, beside its controls: no teacher, one site, all weights,
no codec; a copy of the source; a dictionary: python benchmarks/translation.py [--seeds 3] [words]

Each seed is a run of the flow for each variant in one store, so equal parts are made once. `words` are added
to every run (such as tune.steps=200). Sentences are generated: this is no quality of real translation.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev

from machine import keep

from atelier.engine.config.intervals import t95

TOP = Path(__file__).parent.parent
VARIANTS = {  # its words, and the model whose exam counts
    "student": (("score.controls=true",), "student"),
    "no teacher": (("score.controls=true",), "student-alone"),
    "teacher": ((), "teacher"),
    "one site": (("sites=[]",), "student"),
    "all weights": (("tune.trainable.kind=full", "~tune.trainable.rank", "~tune.trainable.alpha"), "student"),
    "no codec": (("train.link.codec.kind=none",), "student"),
}
METRICS = ("chrf", "bleu", "exact_match")


def report(root: str, words: tuple[str, ...]) -> Path:
    """The folder of the report that the flow with these words wrote last."""
    command = [sys.executable, "-m", "atelier", "nebula", "tracker=none", "score.baselines=false", *words]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"ATELIER_ROOT": root}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout[-4000:] + done.stderr[-4000:])
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("report ")]
    return Path(lines[-1][1]).parent


def exams(root: str, models: dict[str, str]) -> dict[str, dict]:
    """The exams of the store, by model's fingerprint."""
    found = {}
    for record in Path(root).glob("exam/*/record.json"):
        known = json.loads(record.read_text())
        [path] = record.parent.glob("*/exam.json")
        found[known["parents"]["model"]] = json.loads(path.read_text())
    return {name: found[fingerprint] for name, fingerprint in models.items() if fingerprint in found}


def models_of(page: Path) -> dict[str, str]:
    """The fingerprints of a report's models, by name."""
    record = json.loads((page.parent / "record.json").read_text())
    parents = {key: value for key, value in record["parents"].items() if key.startswith("model.")}
    return {key.removeprefix("model."): value for key, value in parents.items()}


def summary(values: list[float]) -> dict[str, float | list[float]]:
    """Mean and half of the 95 % t-interval over seeds."""
    found: dict[str, float | list[float]] = {"values": values, "mean": fmean(values)}
    if len(values) > 1:
        found["half"] = t95(len(values) - 1) * stdev(values) / len(values) ** 0.5
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="commas between")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    chosen = given.variants.split(",")
    scores: dict[str, dict[str, list[float]]] = {}
    for seed in range(1, given.seeds + 1):
        with tempfile.TemporaryDirectory() as root:
            for name in chosen:
                own, model = VARIANTS[name]
                page = report(root, (f"train.seed={seed}", *own, *given.words))
                exam = exams(root, models_of(page))[model]
                rows = {name: exam["metrics"], **exam["rivals"]}
                for row, metrics in rows.items():
                    if row in chosen or name == chosen[0]:  # rivals once for each seed
                        for metric in METRICS:
                            scores.setdefault(row, {}).setdefault(metric, []).append(metrics[metric]["value"])
                print(seed, name, {m: round(exam["metrics"][m]["value"], 3) for m in METRICS}, flush=True)
    first = scores[chosen[0]]["chrf"]
    table = {
        row: {metric: summary(each) for metric, each in metrics.items()} for row, metrics in scores.items()
    }
    differences = {
        row: summary([one - other for one, other in zip(first, metrics["chrf"], strict=True)])
        for row, metrics in scores.items()
        if row != chosen[0]
    }
    keep("translation", {"scores": table, f"chrF of {chosen[0]} above": differences})


if __name__ == "__main__":
    main()
