"""Tokens per CPU-second and peak memory of atelier.engine.train against a bare hand-written PyTorch loop and
public ones (benchmarks/public_loop.py): same model, batch, precision, documents, compile.

python benchmarks/peers.py [--repeats 3] [--steps 60] [--eager] [--public PYTHON]      half an hour

Each contender is a whole process. Counted are the CPU-seconds of a long run minus those of a short one,
without start-up and compiling. The order rotates; medians are compared: goal 1.05 of the best. Memory is the
whole process's peak at a vocabulary of 32,768, where the logits are most of it: goal 0.8 of the least of the
others. PYTHON is an interpreter that has the public libraries (transformers, accelerate, lightning, litgpt).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code

PEERS = ("transformers", "litgpt")
OURS = "atelier.engine.train"
VOCAB, LARGE = 4096, 32768
SHORT = 10
TOKENS_A_STEP = 16 * 256

use_own_code()


def cost(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """User and system time of a process and its children, and its peak memory in GB."""
    process = subprocess.Popen(command, env=env, cwd=PROJECT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e9


def prepared(root: Path) -> dict[str, str]:
    """URLs of tokens and tokenizer of the default corpus, made by the corpus flow."""
    env = os.environ | {"ATELIER_ROOT": str(root)}
    subprocess.run(
        [sys.executable, "-m", "atelier", "corpus", "tracker=none"],
        env=env,
        cwd=PROJECT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return {kind: str(next((root / kind).iterdir())) for kind in ("tokens", "tokenizer")}


def run_file(folder: Path, inputs: dict[str, str], steps: int, compiled: bool, vocab: int) -> Path:
    """run.json of one role, `atelier distill`'s teacher, that nobody resumes."""
    model = {
        "kind": "gpt",
        "num_layers": 4,
        "hidden": 256,
        "num_heads": 4,
        "num_kv_heads": 2,
        "ffn": 704,
        "vocab": vocab,
    }
    role = {
        "model": model,
        "objective": {"lm": {"kind": "lm"}},
        "optim": {"kind": "adamw", "lr": 2e-3, "schedule": {"kind": "constant"}},
    }
    segment = {"fingerprint": "0" * 64, "url": str(folder / "trajectory"), "start": 0, "end": steps}
    train = {
        "steps": steps,
        "global_batch": 16,
        "sequence": 256,
        "checkpoint_every": 10**6,
        "keep": 0,
        "eval_every": 10**6,
    }
    training = {
        "members": {"model": {"role": role, "segments": [segment]}},
        "streams": [{"input": "tokens"}],
        "train": train,
    }
    layout = {"shard": 1, "threads": 1, "compile": "block" if compiled else "none"}
    run = {
        "schema": 1,
        "task": "train",
        "version": 1,
        "config": {"trainings": [training]},
        "inputs": inputs,
        "outputs": {},
        "scratch": str(folder / "scratch"),
        "layout": layout,
    }
    (folder / "scratch").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run))
    return folder / "run.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--public", default="", metavar="PYTHON")
    parser.add_argument("--store", type=Path, help="a store that has the default corpus; else it is made")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        inputs = prepared(chosen.store or root / "store")
        env = os.environ | {
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
            "PYTHONPATH": str(PROJECT / "src"),
        }
        tokens = next(Path(inputs["tokens"]).glob("payload-*"))
        count = 0

        def ours(steps: int, vocab: int = VOCAB) -> tuple[float, float]:
            nonlocal count
            count += 1
            path = run_file(root / f"run{count}", inputs, steps, not chosen.eager, vocab)
            return cost([sys.executable, "-m", "atelier.engine.train", str(path)], env)

        def bare(steps: int, vocab: int = VOCAB) -> tuple[float, float]:
            command = [sys.executable, "benchmarks/bare_loop.py", str(tokens), "--steps", str(steps)]
            more = [] if chosen.eager else ["--compile"]
            return cost(command + more, env | {"BENCHMARK_VOCAB": str(vocab)})

        def public(peer: str, steps: int, vocab: int = VOCAB) -> tuple[float, float]:
            command = [chosen.public, "benchmarks/public_loop.py", peer, str(tokens), "--steps", str(steps)]
            more = ["--eager"] if chosen.eager else []
            return cost(command + more, env | {"BENCHMARK_VOCAB": str(vocab)})

        contenders: dict[str, Any] = {OURS: ours, "bare loop": bare}
        if chosen.public:
            contenders |= {peer: partial(public, peer) for peer in PEERS}
        for contender in contenders.values():
            contender(3)  # fills the compile cache
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        names = list(contenders)
        for i in range(chosen.repeats):
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                spent = contenders[name](SHORT + chosen.steps)[0] - contenders[name](SHORT)[0]
                rates[name].append(chosen.steps * TOKENS_A_STEP / spent)
                print(f"round {i + 1}: {name} {rates[name][-1]:.0f} tokens a CPU-second", flush=True)
        medians = {name: round(statistics.median(found)) for name, found in rates.items()}
        memory = {name: contender(SHORT, LARGE)[1] for name, contender in contenders.items()}
        others = [name for name in names if name != OURS]
        best, least = max(others, key=medians.__getitem__), min(others, key=memory.__getitem__)
        keep(
            "peers",
            {
                "tokens_per_cpu_second": medians,
                "all": {name: [round(x) for x in found] for name, found in rates.items()},
                "best other": best,
                "ratio to it": round(medians[OURS] / medians[best], 3),
                "goal": 1.05,
                "peak_gb at 32k": {name: round(found, 3) for name, found in memory.items()},
                "memory to the least": round(memory[OURS] / memory[least], 3),
                "memory goal": 0.8,
                "compiled": not chosen.eager,
                "threads": 1,
            },
        )


if __name__ == "__main__":
    main()
