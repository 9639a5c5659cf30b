"""What the planner says of trainings beside what they take: seconds of a step and peak memory, of models and
layouts that it was not calibrated on.

python benchmarks/planner.py [--store DIR] [--tiny]      ten minutes, on a quiet machine

First `--calibrate`, then each training in processes of its own, three times round; medians count. Memory is
that above a process that trains next to nothing. Goals: memory within 10 %, steps within 15 %.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from machine import keep

from engine.plan.estimate import estimate
from engine.plan.fit import Probe
from engine.spec.parallel import Parallel
from engine.spec.pool import Pool
from infra.calibrate import VOCAB, calibrate, probe, random_tokens, run_probes
from infra.machine import num_cores

ONE = Parallel(shard=1, threads=1, compile="none")
TWO = {"threads": 1, "compile": "none"}
TURNS = 3
CASES = {
    "128 x 4": (ONE, (128, 4, 256, 8), {}),
    "256 x 4": (ONE, (256, 4, 256, 8), {}),
    "384 x 6": (ONE, (384, 6, 256, 4), {}),
    "768 x 4": (ONE, (768, 4, 128, 4), {}),
    "256 x 4, long rows": (ONE, (256, 4, 1024, 2), {}),
    "256 x 4, gelu, layer norm": (ONE, (256, 4, 256, 8), {"mlp": "gelu", "norm": "layer"}),
    "256 x 4, four experts": (ONE, (256, 4, 256, 4), {"num_experts": 4, "ffn": 256}),
    "256 x 4, full recomputation": (ONE.model_copy(update={"recompute": "full"}), (256, 4, 256, 8), {}),
    "256 x 4, two threads": (ONE.model_copy(update={"threads": 2}), (256, 4, 256, 8), {}),
    "256 x 4, shard 2": (Parallel(shard=2, **TWO), (256, 4, 256, 8), {}),
    "256 x 4, replicate 2": (Parallel(shard=1, replicate=2, **TWO), (256, 4, 256, 8), {}),
    "256 x 4, tensor 2": (Parallel(shard=1, tensor=2, **TWO), (256, 4, 256, 8), {}),
    "256 x 4, pipeline 2": (Parallel(shard=1, pipeline=2, **TWO), (256, 4, 256, 8), {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=None)
    parser.add_argument("--tiny", action="store_true", help="two cases: tries the script, shows nothing")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        root = str(chosen.store or base / "store")
        pool = calibrate(root, Pool(), num_cores(), base / "calibrate", print)
        tokens = random_tokens(base / "tokens")
        nothing = run(root, base / "nothing", tokens, probe("nothing", ONE, 32, 1, 64, 1))
        found: dict[str, Any] = {"facts": pool.model_dump(exclude_defaults=True), "base_gb": nothing[1]}
        cases = {
            name: probe(f"case-{number}", layout, *shape, **more)
            for number, (name, (layout, shape, more)) in enumerate(CASES.items())
        }
        cases = dict(list(cases.items())[:2]) if chosen.tiny else cases
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for turn in range(1 if chosen.tiny else TURNS):
            for name, one in cases.items():
                measured[name].append(run(root, base / f"{turn}-{one.name}", tokens, one))
                print(f"{turn + 1}: {name}: {measured[name][-1]}", flush=True)
        for name, one in cases.items():
            step_s, memory_gb = map(statistics.median, zip(*measured[name], strict=True))
            found[name] = beside(pool, one, (step_s, memory_gb), nothing[1])
            found[name]["steps_s"] = [round(each[0], 4) for each in measured[name]]
    keep("planner", found | summary(found), is_trial=chosen.tiny)


def run(root: str, scratch: Path, tokens: str, one: Probe) -> tuple[float, float]:
    """Seconds of a step and GB at the peak."""
    [(measured, seen)] = run_probes(root, scratch, tokens, one.parallel, [one])
    return measured.step_s, seen.memory_gb


def beside(pool: Pool, one: Probe, measured: tuple[float, float], base_gb: float) -> dict[str, Any]:
    planned = estimate(one.role, one.train, one.parallel, pool, VOCAB, steps=1)
    step_s, memory_gb = measured[0], measured[1] - base_gb
    return {
        "step_s": round(step_s, 4), "planned_s": round(planned.step_s, 4),
        "step percent": round(100 * (planned.step_s / step_s - 1), 1),
        "memory_gb": round(memory_gb, 3), "planned_gb": round(planned.memory_gb, 3),
        "memory percent": round(100 * (planned.memory_gb / memory_gb - 1), 1),
    }  # fmt: skip


def summary(found: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in found.values() if isinstance(row, dict) and "step percent" in row]
    return {
        "cases": len(rows),
        "steps within 15 %": sum(abs(row["step percent"]) <= 15 for row in rows),
        "memory within 10 %": sum(abs(row["memory percent"]) <= 10 for row in rows),
    }


if __name__ == "__main__":
    main()
