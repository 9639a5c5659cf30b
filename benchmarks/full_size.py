"""Plans of the papers' models at full size: parameters, memory of the fullest device, time of a step. Nothing
is trained: python benchmarks/full_size.py (some seconds).
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from machine import keep, use_own_code

A100 = "pool=a100_80g"
# head width 64 and the sizes of MiniCPM's published configurations
MINICPM = ("pretrain", "model=gpt_mini", A100, "pool.gpus=8", "train.steps=0", "train.tokens=1.0e+12",
           "train.global_batch=1024", "train.micro_batch=1", "train.sequence=4096", "parallel.shard=8",
           "parallel.recompute=full")  # fmt: skip
# of Frontier's devices, dies of MI250X; the fastest layout of a search counts
FRONTIER = ("pretrain", "model=gpt_mini", "pool=mi250x", "pool.gpus=1024", "train.steps=0",
            "train.tokens=1.0e+9", "train.global_batch=1024", "train.micro_batch=1", "train.sequence=2048",
            "parallel.recompute=full", "parallel.tensor=8", "parallel.pipeline=16", "parallel.shard=8",
            "model.mlp=gelu", "tokenizer.vocab=51200", "--search")  # fmt: skip
WAYS: dict[str, tuple[str, ...]] = {
    "titan_260b": ("titan", "experiment=titan_260b", "pool=h200"),
    "cpm2_11b": ("pretrain", "experiment=cpm2_11b", A100, "pool.gpus=64"),
    "cpm2_198b": ("pretrain", "experiment=cpm2_198b", A100, "pool.gpus=128"),
    "semoe_13b": ("pretrain", "experiment=semoe_13b", A100),
    "semoe_207b": ("pretrain", "experiment=semoe_207b", A100),
    "minicpm_1b": (*MINICPM, "model.num_layers=52", "model.hidden=1536", "model.num_heads=24",
                   "model.num_kv_heads=8", "model.ffn=3840", "tokenizer.vocab=73440"),
    "minicpm_2b": (*MINICPM, "model.num_layers=40", "model.hidden=2304", "model.num_heads=36",
                   "model.num_kv_heads=36", "model.ffn=5760", "tokenizer.vocab=122753"),
    **{f"frontier_{name}": (*FRONTIER, f"model.num_layers={layers}", f"model.hidden={hidden}",
                            f"model.num_heads={heads}", f"model.num_kv_heads={heads}")
       for name, layers, hidden, heads in (("22b", 48, 6144, 48), ("175b", 96, 12288, 96),
                                           ("1t", 128, 25600, 128))},
}  # fmt: skip


def planned(words: tuple[str, ...], root: str) -> dict[str, Any]:
    """The plan's figures of the trainings, and the memory that scores need."""
    done = subprocess.run(
        [sys.executable, "-m", "atelier", "plan", *words, "--json"],
        env=os.environ | {"ATELIER_ROOT": root}, cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode and "--search" not in words:  # the layout searched from need not fit
        raise SystemExit(done.stdout + done.stderr)
    plan = json.loads(done.stdout)
    found: dict[str, Any] = {"command": "atelier plan " + " ".join(words)}
    for search in plan.get("search", []):
        first = search["layouts"][0]
        return found | {
            "parameters, B": round(first["params"] / 1e9, 1), "MFU": round(first["mfu"], 4),
            "layout": first["words"], "memory_gb": round(first["memory_gb"], 1),
            "layouts that fit": len(search["layouts"]), "layouts that do not": len(search["out"]),
        }  # fmt: skip
    for task in plan["tasks"]:
        if task["task"] == "train" and ".controls" not in task["name"]:
            layout = {name: task["layout"][name] for name in ("replicate", "shard", "expert", "tensor")}
            found[task["name"]] = {
                "parameters": task["params"], "parameters, B": round(task["params"] / 1e9, 2),
                "memory_gb": round(task["memory_gb"], 1), "step_s": round(task["step_s"], 3),
                "device_days": round(task["device_hours"] / 24, 1),
                "layout": layout | {"pipeline": task["layout"]["pipeline"]},
            }  # fmt: skip
        elif task["name"] == "score.model":
            found["score"] = {"memory_gb": round(task["memory_gb"], 1)}
    return found | {"wall_days": round(plan["totals"]["wall_s"] / 86400, 2)}


def main() -> None:
    use_own_code()
    with tempfile.TemporaryDirectory() as root:
        keep("full_size", {name: planned(words, root) for name, words in WAYS.items()})


if __name__ == "__main__":
    main()
