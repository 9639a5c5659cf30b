"""Training with expert states on disk beside DeepSpeed's offload to disk (ZeRO-Infinity, 2104.07857), with
the same model, tokens a step and float32 AdamW with clipping: seconds a step and the peak of the process.

pip install deepspeed           (0.19 builds its kernels: a C++ compiler and libaio's headers)
python benchmarks/deepspeed_offload.py [--steps 5] [--rounds 2] [--folder .]     20 minutes

The model is that of benchmarks/tiers.py: 1.06 GB of expert states. DeepSpeed trains the plain module of
engine/model, with the loss from whole logits. It keeps the optimiser's states (or these and the weights) on
disk by asynchronous reads past the page cache. The ways alternate in rotated order; medians of the steps
after the first. No cgroup: both may use the page cache.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep
from tiers import SEQUENCE, SHARE, STATES, training_of

ROWS, THREADS = 64, 2
WAYS = ("atelier: memory", "atelier: disk", "deepspeed: memory", "deepspeed: optimiser", "deepspeed: all")
BUFFERS = {"pin_memory": False, "buffer_count": 8}


def deepspeed_worker(way: str, folder: Path, steps: int) -> None:
    """Train a plain module by DeepSpeed in this process."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611",
    }  # fmt: skip
    import deepspeed  # pyright: ignore[reportMissingImports]  # a peer, not a dependency
    import torch
    from model_memory import peak_mb

    from atelier.engine.model.load import build

    torch.set_num_threads(THREADS)
    torch.manual_seed(1)
    _, spec, _, _ = training_of(folder, {"steps": steps, "rows": ROWS})
    body = build(spec.model)
    for weight in body.parameters():
        torch.nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else torch.nn.init.ones_(weight)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            logits_BTV = self.body(batch).hidden @ self.body.head_weight.T
            return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), batch["labels_BT"].flatten())

    place = {"device": "nvme", "nvme_path": str(folder / "nvme"), **BUFFERS}
    zero: dict[str, Any] = {"stage": 3, "sub_group_size": STATES // 12 // 4}
    if way != "deepspeed: memory":
        zero["offload_optimizer"] = place
    if way == "deepspeed: all":
        zero["offload_param"] = place | {"buffer_size": 2 * max(w.numel() for w in body.parameters())}
    net = Net()
    engine, *_ = deepspeed.initialize(
        model=net,
        model_parameters=list(net.parameters()),
        config={
            "train_micro_batch_size_per_gpu": ROWS,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": zero,
            "aio": {"block_size": 1 << 20, "queue_depth": 8, "overlap_events": True},
        },
    )
    generator = torch.Generator().manual_seed(1)
    seconds = []
    for _ in range(steps):
        tokens_BT = torch.randint(spec.model.tokens, (ROWS, SEQUENCE), generator=generator)
        batch = {
            "tokens_BT": tokens_BT, "positions_BT": torch.arange(SEQUENCE).expand(ROWS, -1),
            "documents_BT": torch.zeros_like(tokens_BT), "labels_BT": tokens_BT.roll(-1, 1),
        }  # fmt: skip
        began = time.perf_counter()
        engine.backward(engine(batch))
        engine.step()
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"seconds": seconds, "peak_mb": peak_mb()}), flush=True)
    os._exit(0)


def run(way: str, folder: Path, steps: int) -> dict[str, Any]:
    if way.startswith("atelier"):
        chosen = {
            "where": way.split()[-1], "folder": str(folder), "steps": steps, "rows": ROWS, "threads": THREADS
        }  # fmt: skip
        words = [str(Path(__file__).with_name("tiers.py")), "--worker", json.dumps(chosen)]
    else:
        words = [__file__, "--worker", json.dumps([way, str(folder), steps])]
    env = os.environ | {"OMP_NUM_THREADS": str(THREADS), "PYTHONWARNINGS": "ignore"}
    child = subprocess.run([sys.executable, *words], env=env, stdout=subprocess.PIPE, text=True)
    if child.returncode:
        raise SystemExit(f"{way} ended with {child.returncode}")
    said = next(line for line in reversed(child.stdout.splitlines()) if line.startswith("{"))
    return json.loads(said)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on a disk with 6 GB left")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        way, folder, steps = json.loads(given.worker)
        deepspeed_worker(way, Path(folder), steps)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for turn in range(given.rounds):
        ways = list(WAYS)
        for way in ways[turn:] + ways[:turn]:
            folder = Path(tempfile.mkdtemp(dir=given.folder))
            try:
                found[way].append(run(way, folder, given.steps))
            finally:
                shutil.rmtree(folder)
            print(way, [round(second, 2) for second in found[way][-1]["seconds"]], flush=True)
    numbers = {
        "states_gb": round(STATES / 1e9, 3),
        "in_memory_gb of atelier: disk": round(SHARE * STATES / 1e9, 3),
        "tokens a step": ROWS * SEQUENCE,
        "step_s": {
            way: round(statistics.median(s for one in many for s in one["seconds"][1:]), 3)
            for way, many in found.items()
        },
        "peak_mb": {
            way: round(statistics.median(one["peak_mb"] for one in many)) for way, many in found.items()
        },
    }
    keep("deepspeed_offload", numbers, is_trial=given.rounds < 2)


if __name__ == "__main__":
    main()
