"""Cost of checkpoints in a training: pauses, CPU time, slower steps while one is written, and the write speed
beside dd. A model with 150 MB of state (fp32 weights, two Adam moments), a checkpoint every 20 steps.

python benchmarks/checkpoint.py [--repeats 3] [--steps 100] [--folder .]      goal: pauses below 2 %

Whole atelier.engine.train processes on the disk of --folder: with checkpoints, without any, and dd of as many
bytes with conv=fsync. The order rotates; medians are compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.machine import num_cores
from tests.engine.trainings import VOCAB, tokens

EVERY = 20
NEVER = 10**6
MODEL = GPT(num_layers=4, hidden=512, num_heads=8, vocab=VOCAB)
STATE_MB = MODEL.num_params() * 12 / 1e6

use_own_code()


def run_file(folder: Path, inputs: dict[str, str], steps: int, every: int) -> Path:
    segment = {"fingerprint": "0" * 64, "url": str(folder / "trajectory"), "start": 0, "end": steps}
    role = {
        "model": MODEL.model_dump(mode="json"),
        "objective": {"lm": {"kind": "lm"}},
        "optim": {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}},
    }
    train = {
        "steps": steps,
        "global_batch": 4,
        "sequence": 256,
        "precision": "fp32",
        "checkpoint_every": every,
        "keep": 2,
        "eval_every": NEVER,
    }
    members = {"model": {"role": role, "segments": [segment]}}
    training = {"members": members, "streams": [{"input": "tokens"}], "train": train}
    layout = {"shard": 1, "threads": num_cores(), "compile": "none", "device": "cpu"}
    config = {"trainings": [training]}
    run = {"schema": 1, "task": "train", "version": 1, "config": config, "inputs": inputs, "layout": layout}
    (folder / "scratch").mkdir(parents=True)
    path = folder / "run.json"
    path.write_text(json.dumps(run | {"outputs": {}, "scratch": str(folder / "scratch")}))
    return path


def trained(folder: Path, inputs: dict[str, str], steps: int, every: int) -> dict[str, Any]:
    """CPU seconds and the timings of every step of one atelier.engine.train."""
    command = [sys.executable, "-m", "atelier.engine.train", str(run_file(folder, inputs, steps, every))]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    lines = []
    for segment in sorted((folder / "trajectory" / "metrics").iterdir()):
        lines += [json.loads(line) for line in segment.read_text().splitlines()]
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "timing": {x["step"]: x["timing"] for x in lines}}


def judged(run: dict[str, Any], steps: int) -> dict[str, float]:
    """Stand-still and slow steps of one run with checkpoints. A stall is told with the step after it; the
    first step after a save is the one beside which most of it is written.
    """
    timing = run["timing"]
    saves = range(EVERY, steps - EVERY + 1, EVERY)
    stalls = [timing[save + 1]["checkpoint_stall_s"] for save in saves]
    quiet = [timing[save + i]["step_s"] for save in saves for i in range(EVERY // 2, EVERY + 1)]
    beside = [timing[save + 1]["step_s"] for save in saves]
    step_s = statistics.median(quiet)
    return {
        "step_ms": step_s * 1e3,
        "stall_ms": statistics.median(stalls) * 1e3,
        "stall_percent": 100 * statistics.mean(stalls) / (EVERY * step_s + statistics.mean(stalls)),
        "step_beside_a_save_percent": 100 * (statistics.median(beside) / step_s - 1),
    }


def write_speed(folder: Path) -> dict[str, float]:
    """MB/s of one save of as much state by itself, and of dd."""
    script = (
        "import sys, time, torch\n"
        "from atelier.engine.checkpoint.collective_call import SingleRank\n"
        "from atelier.engine.checkpoint.writer import save_async\n"
        "torch.manual_seed(0)\n"
        "state = {str(i): torch.randn(int(sys.argv[2]) // 48) for i in range(12)}\n"
        "url = sys.argv[1] + '/step-00000001'\n"
        "save = save_async(url, state, step=1, trajectory='a', gang=SingleRank())\n"
        "save.wait()\n"
        "print(save.write_s, save.blocked_s)\n"
    )
    size = round(STATE_MB * 1e6)
    command = [sys.executable, "-c", script, str(folder / "alone"), str(size)]
    ours = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout.split()
    source, target = folder / "random", folder / "dd"
    source.write_bytes(os.urandom(size))
    started = time.perf_counter()
    dd = ["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync"]
    subprocess.run(dd, check=True, capture_output=True)
    took = time.perf_counter() - started
    return {"save_mb_s": STATE_MB / float(ours[0]), "dd_mb_s": STATE_MB / took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {}

    def add(numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            found.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        root = Path(name)
        inputs = {"tokens": tokens(root / "tokens", num_tokens=1_000_000)}
        for i in range(chosen.repeats):
            cpu: dict[str, float] = {}

            def saving(i: int = i, cpu: dict[str, float] = cpu) -> None:
                run = trained(root / f"saving{i}", inputs, chosen.steps, EVERY)
                cpu["saving"] = run["cpu_s"]
                add(judged(run, chosen.steps))

            def plain(i: int = i, cpu: dict[str, float] = cpu) -> None:
                cpu["plain"] = trained(root / f"plain{i}", inputs, chosen.steps, NEVER)["cpu_s"]

            def disk(i: int = i) -> None:
                (root / f"disk{i}").mkdir()
                add(write_speed(root / f"disk{i}"))

            contenders = [saving, plain, disk]
            for contender in contenders[i % 3 :] + contenders[: i % 3]:
                contender()
            # both end with one checkpoint
            add({"cpu_s_a_checkpoint": (cpu["saving"] - cpu["plain"]) / (chosen.steps // EVERY - 1)})
            print(
                f"round {i + 1}: { ({key: round(all_[-1], 2) for key, all_ in found.items()}) }", flush=True
            )
    medians = {key: round(statistics.median(values), 2) for key, values in found.items()}
    keep(
        "checkpoint",
        {"state_mb": round(STATE_MB), "every": EVERY, "steps": chosen.steps}
        | medians
        | {"goal_stall_percent": 2, "all": {k: [round(v, 2) for v in values] for k, values in found.items()}},
    )


if __name__ == "__main__":
    main()
