"""The engine on one GPU, in bf16 with compiled blocks and models of 125 M and 1 B parameters: tokens a
second, MFU against the matmul peak measured here, and whether a resumed run ends with the same bits.

python benchmarks/gpu.py [--models 125m 1b] [--precision bf16] [--steps 30] [--device cuda]

--device cpu --models tiny tests the script itself. Everything runs in one process; JSON is printed and kept.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import torch
from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from tests.engine.trainings import TrainingSetup, role, tokens, train

VOCAB = 32768
MODELS: dict[str, tuple[GPT, dict[str, int]]] = {
    "tiny": (GPT(num_layers=2, hidden=64, num_heads=2, vocab=512), {"sequence": 64, "global_batch": 4}),
    "125m": (
        GPT(num_layers=12, hidden=768, num_heads=12, vocab=VOCAB),
        {"sequence": 2048, "global_batch": 32, "micro_batch": 16},
    ),
    "1b": (
        GPT(num_layers=18, hidden=2048, num_heads=16, vocab=VOCAB),
        {"sequence": 2048, "global_batch": 16, "micro_batch": 8},
    ),
}
WARM_UP = 8  # steps that are not counted: compiling, caches, clocks

use_own_code()


def matmul_peak(device: torch.device, size: int) -> float:
    """FLOP/s of bf16 matrix products, the best of several rounds."""
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = 0.0
    for _ in range(6):
        wait(device)
        begin = time.perf_counter()
        for _ in range(10):
            torch.matmul(left, right)
        wait(device)
        best = max(best, 10 * 2 * size**3 / (time.perf_counter() - begin))
    return best


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def trained(training_setup: TrainingSetup, name: str, steps: int, options: argparse.Namespace) -> None:
    """`steps` steps of a model in a process of its own, from its newest checkpoint if it has one."""
    model, batch = MODELS[name]
    how = train(
        steps,
        precision=options.precision,
        checkpoint_every=10**6,
        eval_every=10**6,
        **({"micro_batch": "auto"} | batch),
    )
    layout = Parallel(shard=1, threads="auto", compile="block", device=options.device)
    (process,) = training_setup.processes(
        training_setup.run_file(
            training_setup.training({name: role(shape=model, lr=3e-4)}, how), layout=layout
        )
    )
    out, errors = process.communicate(timeout=3600)
    if process.returncode:
        raise SystemExit(f"{name}: {out[-500:]}{errors[-2000:]}")


def speed(folder: Path, name: str, peak: float, options: argparse.Namespace) -> dict[str, Any]:
    """Medians over the steps after the first ones."""
    model, batch = MODELS[name]
    training_setup = made(folder, model)
    trained(training_setup, name, options.steps, options)
    lines = [
        json.loads(line)
        for path in sorted((folder / "trajectory" / name / "metrics").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    timings = [line["timing"] for line in lines if line["step"] > WARM_UP]
    rate = statistics.median(each["tokens_per_s"] for each in timings)
    return {
        "params": model.num_params(),
        "tokens_per_s": round(rate),
        "step_ms": round(1e3 * statistics.median(each["step_s"] for each in timings), 2),
        "mfu_of_measured_peak": round(rate * model.flops_per_token(batch["sequence"]) / peak, 4),
        "memory_gb": round(max(each["memory_gb"] for each in timings), 2),
        "data_wait_ms": round(1e3 * statistics.median(each["data_wait_s"] for each in timings), 3),
        "loss": [lines[0]["values"]["loss"], lines[-1]["values"]["loss"]],
    }


def resumes_exactly(folder: Path, name: str, options: argparse.Namespace) -> bool:
    """Eight steps at once, and four and four: the same weights to the bit."""
    weights = []
    for parts in ((8,), (4, 8)):
        training_setup = made(folder / f"{len(parts)}", MODELS[name][0])
        for steps in parts:
            trained(training_setup, name, steps, options)
        weights.append(training_setup.weights(name))
    return weights[0] == weights[1]


def made(folder: Path, model: GPT) -> TrainingSetup:
    folder.mkdir(parents=True)
    training_setup = TrainingSetup(folder)
    training_setup.inputs = {"tokens": tokens(folder / "random", num_tokens=2_000_000, vocab=model.tokens)}
    return training_setup


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["125m", "1b"], choices=list(MODELS))
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp8", "fp32"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("gpu.py: torch sees no GPU here; --device cpu --models tiny tries the script itself")
    device = torch.device(options.device)
    peak = matmul_peak(device, 8192 if device.type == "cuda" else 1024)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    numbers: dict[str, Any] = {
        "device": name, "precision": options.precision, "measured_peak_tflops": round(peak / 1e12, 2)
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            numbers[model] = speed(Path(folder) / model, model, peak, options)
        first = options.models[0]
        numbers["resume_exact"] = {first: resumes_exactly(Path(folder) / "resume", first, options)}
    keep("gpu" if device.type == "cuda" else "gpu-tried-on-cpu", numbers)


if __name__ == "__main__":
    main()
