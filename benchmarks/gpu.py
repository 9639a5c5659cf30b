"""The engine on GPUs, in parts of at most eight minutes. JSON is printed, and kept in results/gpu_PART.json.

python benchmarks/gpu.py PART [--models 125m 1b] [--precision bf16] [--gpus 1] [--steps 30]

speed       MFU, seconds of a step and memory beside the plan, of models of 125 M, 1 B, 3 B parameters; with
            --gpus 8 sharded (FSDP2), also of 8 B. Each leaves up to 16 bytes a parameter on disk for a while
repeat      whether equal runs and resumed runs have equal bits, with and without parallel.deterministic, and
            what it costs
students    a teacher with two students beside the teacher alone: seconds of a step, and FLOPs
experts     one layer with 8, 64, 256 experts, its two ways beside a loop over experts
checkpoint  how long steps stand still for a checkpoint
tiers       a mixture with experts' states in host memory and on disk beside all of them on the GPU: bits,
            seconds of a step and memory beside the plan; and its passes, streamed from files

`--device cpu --tiny` tries a part on CPUs. Only the engine's own libraries are used. `atelier plan pretrain
--calibrate` fits the plan to the GPUs; speed shows how far the plan is from what was measured without that.
"""

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

import moe
import torch
from gpu_tiers import MIXTURES, passes
from machine import keep, use_own_code

from atelier.engine.config.device import DEVICES, is_device
from atelier.engine.config.metric import merge
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.cost import state_bytes
from atelier.engine.model.moe import MoE
from atelier.engine.parallel.compute import Precision, arithmetic
from atelier.engine.plan.estimate import estimate
from tests.engine.trainings import TrainingSetup, role, student, tokens, train

VOCAB = 32768
Batch = dict[str, int]
MODELS: dict[str, tuple[GPT, Batch]] = {
    "tiny": (GPT(num_layers=2, hidden=64, num_heads=2, vocab=512), {"sequence": 64, "global_batch": 4}),
    "125m": (
        GPT(num_layers=12, hidden=768, num_heads=12, vocab=VOCAB),
        {"sequence": 2048, "global_batch": 32, "micro_batch": 16},
    ),
    "1b": (
        GPT(num_layers=18, hidden=2048, num_heads=16, vocab=VOCAB),
        {"sequence": 2048, "global_batch": 16, "micro_batch": 8},
    ),
    "3b": (
        GPT(num_layers=28, hidden=3072, num_heads=24, vocab=VOCAB),
        {"sequence": 2048, "global_batch": 8, "micro_batch": 4},
    ),
    "8b": (
        GPT(num_layers=32, hidden=4096, num_heads=32, num_kv_heads=8, ffn=14336, vocab=VOCAB),
        {"sequence": 2048, "global_batch": 16, "micro_batch": 2},
    ),
}
WARM_UP = 8  # steps that are not counted: compiling, caches, clocks
NEVER = 10**6

use_own_code()


@dataclass(frozen=True)
class Asked:
    """The options of a part."""

    models: list[str]
    precision: str
    gpus: int
    steps: int
    device: torch.device
    folder: Path

    def layout(self, **more: Any) -> Parallel:
        usual: dict[str, Any] = {"shard": self.gpus, "compile": "block", "device": "cuda"}
        on_cpus: dict[str, Any] = {"threads": 1, "compile": "none", "device": "cpu"}
        return Parallel(**(usual | (on_cpus if self.device.type == "cpu" else {}) | more))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_peak(device: torch.device) -> float:
    """FLOP/s of bf16 matrix products, the best of several rounds."""
    size = 8192 if device.type == "cuda" else 256
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


def setup(folder: Path, vocab: int) -> TrainingSetup:
    folder.mkdir(parents=True)
    made = TrainingSetup(folder, {"tokens": ""})
    made.inputs = {"tokens": tokens(folder / "random", num_tokens=2_000_000, vocab=vocab)}
    return made


def trained(
    made: TrainingSetup, roles: dict[str, Role], how: Any, layout: Parallel
) -> list[dict[str, float]]:
    """Train in processes of their own, from the newest checkpoint if there is one; the timings of all steps
    of the first role.
    """
    run = made.run_file(made.training(roles, how), layout=layout)
    processes = made.processes(run, world=layout.ranks)
    for process in processes:
        out, errors = process.communicate(timeout=3600)
        if process.returncode:
            raise SystemExit(f"a training failed: {out[-500:]}{errors[-2000:]}")
    folder = made.folder / "trajectory" / next(iter(roles)) / "metrics"
    lines = merge((path.name, path.read_text()) for path in sorted(folder.glob("*.jsonl")))
    return [line.get("timing", {}) for line in lines]


def usual(timings: list[dict[str, float]], key: str = "step_s") -> float:
    """The median over the steps after the first ones."""
    counted = timings[min(WARM_UP, len(timings) // 2) :]
    return statistics.median(timing[key] for timing in counted)


def how_of(asked: Asked, batch: Batch, steps: int, **more: Any) -> Any:
    """Each GPU has the batch."""
    defaults = {"checkpoint_every": NEVER, "eval_every": NEVER, "keep": 0, "micro_batch": "auto"}
    whole = {"global_batch": batch["global_batch"] * asked.gpus}
    return train(steps, precision=asked.precision, **(defaults | batch | whole | more))


def speed(asked: Asked) -> dict[str, Any]:
    peak, found = matmul_peak(asked.device), {}
    for name in asked.models:
        model, batch = MODELS[name]
        shape, layout = role(shape=model, lr=3e-4), asked.layout()
        how = how_of(asked, batch, asked.steps)
        timings = trained(setup(asked.folder / name, model.tokens), {name: shape}, how, layout)
        shutil.rmtree(asked.folder / name)  # the last checkpoint has 12 bytes a parameter, the model 4
        rate = usual(timings, "tokens_per_s")
        memory_gb = max(timing["memory_gb"] for timing in timings)
        found[name] = {
            "params": model.num_params(),
            "tokens_per_s": round(rate),
            "step_ms": round(1e3 * usual(timings), 2),
            "mfu_of_measured_peak": round(
                rate * model.flops_per_token(batch["sequence"]) / peak / asked.gpus, 4
            ),
            "memory_gb": round(memory_gb, 2),
            "data_wait_ms": round(1e3 * usual(timings, "data_wait_s"), 3),
        }
        if (pool := pool_of(asked)) is not None:
            planned = estimate(shape, how, layout, pool, model.tokens)
            found[name] |= {
                "planned step_ms": round(1e3 * planned.step_s, 2),
                "planned memory_gb": round(planned.memory_gb, 2),
            }
    return {"measured_peak_tflops": round(peak / 1e12, 2)} | found


def pool_of(asked: Asked) -> Pool | None:
    """A pool of these GPUs; None for devices without figures."""
    if asked.device.type == "cpu":
        return Pool(half=True)
    name = torch.cuda.get_device_name(asked.device)
    kind = next((known for known in DEVICES if is_device(known, name)), None)
    if kind is None:
        return None
    return Pool(gpu=kind, stack="atelier", gpus=asked.gpus, gpus_per_node=asked.gpus)


def repeat(asked: Asked) -> dict[str, Any]:
    """Each way twice at once, and once in two halves."""
    [name, *_], found = asked.models, {}
    model, batch = MODELS[name]
    for is_on in (False, True):
        weights, seconds = {}, []
        for case, ends in {"once": [16], "again": [16], "resumed": [8, 16]}.items():
            made = setup(asked.folder / f"{is_on}-{case}", model.tokens)
            for end in ends:
                how = how_of(asked, batch, end, keep=1)
                timings = trained(made, {name: role(shape=model)}, how, asked.layout(deterministic=is_on))
            segments = sorted((made.folder / "trajectory" / name / "metrics").glob("*.jsonl"))
            first = json.loads(segments[-1].read_text().splitlines()[0])["step"]
            assert first == (ends[-2] + 1 if len(ends) > 1 else 1), f"{case} begins at step {first}"
            weights[case] = made.weights(name)
            seconds.append(usual(timings))
        found["deterministic" if is_on else "default"] = {
            "equal again": weights["once"] == weights["again"],
            "equal resumed": weights["once"] == weights["resumed"],
            "step_ms": round(1e3 * statistics.median(seconds), 2),
        }
    ways = found["deterministic"]["step_ms"], found["default"]["step_ms"]
    return {name: found, "cost": round(ways[0] / ways[1], 4)}


def students(asked: Asked) -> dict[str, Any]:
    [name, *_] = asked.models
    model, batch = MODELS[name]
    small = model.model_copy(update={"num_layers": max(1, model.num_layers // 2)})
    tiny = model.model_copy(update={"num_layers": max(1, model.num_layers // 4)})
    teacher = {"teacher": role(shape=model, lr=3e-4)}
    two = {"a": student(shape=small), "b": student(shape=tiny)}
    how, found = how_of(asked, batch, asked.steps), {}
    for case, roles in {"alone": teacher, "with two": teacher | two}.items():
        timings = trained(setup(asked.folder / case, model.tokens), roles, how, asked.layout())
        found[case] = {
            "step_ms": round(1e3 * usual(timings), 2),
            "memory_gb": round(max(timing["memory_gb"] for timing in timings), 2),
        }
    flops = [each.flops_per_token(batch["sequence"]) for each in (model, small, tiny)]
    return {name: found} | {
        "time with two / alone": round(found["with two"]["step_ms"] / found["alone"]["step_ms"], 3),
        "flops with two / alone": round(sum(flops) / flops[0], 3),
    }


def experts(asked: Asked) -> dict[str, Any]:
    """As benchmarks/moe.py, without peers; `loop` and `grouped` are this engine's two ways."""
    found: dict[str, Any] = {}
    precision: Precision = "fp32" if asked.precision == "fp32" else "bf16"
    moe.TOKENS = moe.TOKENS if asked.device.type == "cuda" else 64
    for number in moe.CASES if asked.device.type == "cuda" else (8,):
        torch.manual_seed(number)
        ways, _ = moe.layers(number, has_peers=False)
        mine = ways.pop("atelier")
        assert isinstance(mine, MoE)
        mine = mine.to(asked.device)
        x_BTD = moe.tokens_for(mine, skew=0.0)
        timed = partial(
            moe.timed, x_BTD=x_BTD, rounds=max(3, asked.steps // 2), wait=partial(wait, asked.device)
        )
        with arithmetic(precision, asked.device):
            seconds = timed({"loop that gathers and adds": ways["loop"].to(asked.device)})
            for way in ("loop", "grouped"):
                mine.experts.products = way
                seconds |= timed({way: mine})
        found[f"{number} experts"] = {way: one["seconds"] for way, one in seconds.items()}
    return {"tokens": moe.TOKENS, "hidden": moe.HIDDEN, "seconds forward and backward": found}


def checkpoint(asked: Asked) -> dict[str, Any]:
    """A checkpoint every fifth step beside none."""
    [name, *_], found = asked.models, {}
    model, batch = MODELS[name]
    for case, every in {"none": NEVER, "each fifth step": 5}.items():
        how = how_of(asked, batch, asked.steps, checkpoint_every=every, keep=1)
        made = setup(asked.folder / case, model.tokens)
        timings = trained(made, {name: role(shape=model)}, how, asked.layout())
        found[case] = sum(timing["step_s"] + timing["checkpoint_stall_s"] for timing in timings[WARM_UP:])
        saved = sum(timing["checkpoint_stall_s"] > 0 for timing in timings[WARM_UP:])
    more = found["each fifth step"] - found["none"]
    return {
        name: {"state_gb": round(12 * model.num_params() / 1e9, 2)},
        "seconds": {case: round(each, 3) for case, each in found.items()},
        "checkpoints": saved,
        "seconds a checkpoint": round(more / max(1, saved), 4),
        "share": round(more / max(1e-9, found["none"]), 4),
    }


def tiers(asked: Asked) -> dict[str, Any]:
    """The same training with states on the GPU, in host memory (without and with room for all weights on the
    GPU), and half of them on disk. No blocks are compiled, and experts' products are a loop everywhere.
    """
    is_cpu = asked.device.type == "cpu"
    model, batch = MIXTURES[is_cpu]
    slots = len(model.mixtures) * model.num_experts
    states_gb = slots * state_bytes(model, 1) / 1e9
    least = 1e-9 if is_cpu else 0.0  # a value tries the copies on CPUs
    cases: dict[str, dict[str, Any]] = {
        "GPU": {},
        "host": {"tiers": Tiers(experts="disk", device_gb=least)},
        "host, weights on the GPU too": {"tiers": Tiers(experts="disk", device_gb=states_gb)},
        "half on disk": {"tiers": Tiers(experts="disk", host_gb=states_gb / 2, device_gb=least)},
    }
    how, found = how_of(asked, batch, min(asked.steps, 12)), {}
    weights: dict[str, bytes] = {}
    for case, more in cases.items():
        layout = asked.layout(compile="none", expert_products="loop", **more)
        made = setup(asked.folder / case, model.tokens)
        timings = trained(made, {"mixture": role(shape=model)}, how, layout)
        weights[case] = hashlib.sha256(made.weights("mixture")).digest()
        found[case] = {
            "step_ms": round(1e3 * usual(timings), 2),
            "memory_gb": round(max(timing["memory_gb"] for timing in timings), 2),
            "bits of GPU": weights[case] == weights["GPU"],
        }
        if (pool := pool_of(asked)) is not None:
            planned = estimate(role(shape=model), how, layout, pool, model.tokens)
            found[case] |= {
                "planned step_ms": round(1e3 * planned.step_s, 2),
                "planned memory_gb": round(planned.memory_gb, 2),
            }
        if case == "GPU":
            streamed = passes(made.as_input("mixture"), asked.folder / "passes", batch, asked.device)
        shutil.rmtree(asked.folder / case)
    return {"states_gb": round(states_gb, 3), "trainings": found, "passes": streamed}


PARTS: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "speed": speed, "repeat": repeat, "students": students, "experts": experts, "checkpoint": checkpoint,
    "tiers": tiers,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--models", nargs="+", default=["125m", "1b"], choices=list(MODELS))
    parser.add_argument("--precision", default="bf16", choices=["bf16", "fp8", "fp32"])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tries the part, shows nothing")
    chosen = parser.parse_args()
    if chosen.device == "cuda" and torch.cuda.device_count() < chosen.gpus:
        there = torch.cuda.device_count()
        raise SystemExit(f"gpu.py: torch sees {there} GPUs here; --device cpu --tiny tries a part on CPUs")
    device = torch.device(chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        asked = Asked(
            ["tiny"] if chosen.tiny else chosen.models, chosen.precision, chosen.gpus, chosen.steps, device,
            Path(folder),
        )  # fmt: skip
        numbers = PARTS[chosen.part](asked)
    keep(
        f"gpu_{chosen.part}",
        {"device": name, "gpus": chosen.gpus, "precision": chosen.precision} | numbers,
        is_trial=chosen.tiny or device.type == "cpu",
    )


if __name__ == "__main__":
    main()
