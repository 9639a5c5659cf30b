"""Distil a student of 4 experts from a finished teacher of 32, with equal tokens, from three starts: the
teacher's experts merged by cluster, the busiest ones, random ones. Compared by the held-out divergence
KL(teacher || student), in nats a token, over seeds.

python benchmarks/merged.py [--seeds 1 2 3] [--store DIR] [--steps 240]     finished parts are reused
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import torch
from machine import keep, use_own_code
from parts import interval, run_flow

from atelier.engine.data.tokens import Windows
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model.load import read_model

STARTS = {
    "clusters": ("convert.by=clusters",),
    "load": ("convert.by=load",),
    "random": ("convert.by=random",),
}
SEQUENCE, WINDOWS = 256, 128

use_own_code()


def run(store: Path, seed: int, steps: int, words: tuple[str, ...]) -> None:
    shared = [
        "semoe", "~roles.student_dense", "data.held_out=0.2", "tokenizer.vocab=1024",
        "roles.teacher.model.num_experts=32", "roles.teacher.model.experts.ffn=128",
        "roles.student_few.model.experts.ffn=128", f"train.seed={seed}", f"train.steps={steps}",
        "train.checkpoint_every=80", "train.eval_sequences=16", "parallel.tiers.experts=device",
        "score.max_tokens=50000", *words,
    ]  # fmt: skip
    run_flow(store, shared)


def newest(store: Path, kind: str, name: str) -> ArtifactInput:
    found = [open_input(str(place.parent)) for place in store.glob(f"{kind}/*/record.json")]
    named = [each for each in found if each.record.name == name]
    return max(named, key=lambda each: each.record.provenance.get("ended", 0.0))


def made(store: Path) -> dict[str, ArtifactInput]:
    """The models of the newest run, by name."""
    path = max((store / "runs").glob("*.json"), key=lambda each: each.stat().st_mtime)
    rows = [row for row in json.loads(path.read_text())["tasks"] if row["kind"] == "model"]
    places = [store / "model" / row["fingerprint"][:16] for row in rows]
    found = [open_input(str(place)) for place in places]
    return {each.record.name: each for each in found}


@torch.inference_mode()
def divergence(teacher: Any, student: Any, windows: Windows) -> float:
    """Nats a token, over the first held-out windows."""
    total, count = 0.0, 0
    for first in range(0, min(WINDOWS, len(windows)), 8):
        batch = {
            name: torch.from_numpy(values)
            for name, values in windows.batch(range(first, min(first + 8, len(windows)))).items()
        }
        logs = [(model(batch).hidden @ model.head_weight.T).log_softmax(-1) for model in (teacher, student)]
        total += float((logs[0].exp() * (logs[0] - logs[1])).sum())
        count += batch["tokens_BT"].numel()
    return total / count


def measured(store: Path, seed: int, steps: int) -> dict[str, Any]:
    """Of one seed: the divergence of every start before and after it was distilled."""
    found: dict[str, Any] = {}
    scratch = store / "scratch"
    for name, words in STARTS.items():
        run(store, seed, steps, words)
        models = made(store)
        teacher, _ = read_model(models["teacher"], scratch, dtype=torch.float32)
        windows = Windows(newest(store, "tokens", "stdlib"), scratch, "held_out", SEQUENCE)
        each = {"start": "student_few-start", "end": "student_few"}
        for when, key in each.items():
            model, _ = read_model(models[key], scratch, dtype=torch.float32)
            found[f"{name}, {when}"] = divergence(teacher.eval(), model.eval(), windows)
    print(seed, json.dumps(found), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--store", type=Path, default=Path("merged"))
    chosen = parser.parse_args()
    store = chosen.store.resolve()
    store.mkdir(exist_ok=True)
    seeds = [measured(store, seed, chosen.steps) for seed in chosen.seeds]
    numbers: dict[str, Any] = {
        what: {
            "mean": round(statistics.mean(one[what] for one in seeds), 4),
            "interval": interval([one[what] for one in seeds]) if len(seeds) > 1 else None,
        }
        for what in seeds[0]
    }
    for other in ("load", "random"):
        gaps = [one[f"{other}, end"] - one["clusters, end"] for one in seeds]
        numbers[f"{other} - clusters, end"] = {
            "mean": round(statistics.mean(gaps), 4),
            "interval": interval(gaps) if len(gaps) > 1 else None,
        }
    about = {"unit": "nats a token, KL(teacher || student)", "steps": chosen.steps, "seeds": chosen.seeds}
    keep("merged", {**about, "each": seeds, **numbers}, is_trial=len(seeds) < 3)


if __name__ == "__main__":
    main()
