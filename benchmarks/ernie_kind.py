"""Held-out nats of the kind ernie after equally many tokens, beside a gpt of as many parameters, one of as
many FLOPs (a row passes one of ernie's two task nets), and version 1 of ernie, in which a task net's output
took the place of the universal states.

python benchmarks/ernie_kind.py [--seeds 1 2 3] [--store DIR]      half an hour on two cores

Finished parts are reused.

Version 1 is computed by the last commit that had it, taken from this checkout's history.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

from machine import keep
from parts import PROJECT, interval

OLD = "61d74e6^"
COMMON = (
    "tracker=none", "parallel.shard=1", "parallel.threads=1", "train.keep=0", "train.eval_sequences=64",
    "score.baselines=false", "score.max_tokens=2048",
)  # fmt: skip
GPT = ("model=gpt_nano", "model.num_layers=3", "model.mlp=gelu", "model.norm=layer")
FLOPS = (*GPT, "model.ffn=384")  # as many a token as ERNIE
ERNIE = ("model=ernie_tiny",)
# what both versions are trained with: version 1 has other matrices under Muon
ADAMW = ("optim=adamw", "optim.lr=3e-3")
OURS = (*ERNIE, "model.pairs={}")  # version 1 has no such heads
# the shares that version 1 was trained with
MIXTURE = (
    "objective=ernie", "objective.document.rows=0.6", "objective.document.weight=0.6",
    "objective.document.memory=auto", "objective.mlm.rows=0.15", "objective.mlm.weight=0.15",
    *(f"objective.{name}.{what}=0.05" for name in ("knowledge", "reorder", "distance")
      for what in ("rows", "weight")),
)  # fmt: skip
STEPS = {"lm": 320, "lm, AdamW": 320, "mixture": 150}
WAYS: dict[str, tuple[tuple[str, ...], str]] = {
    "lm: ernie": (OURS, ""), "lm: gpt": (GPT, ""), "lm: gpt of equal FLOPs": (FLOPS, ""),
    "lm, AdamW: ernie": ((*OURS, *ADAMW), ""), "lm, AdamW: version 1": ((*ERNIE, *ADAMW), OLD),
    "mixture: ernie": ((*OURS, *MIXTURE, *ADAMW), ""),
    "mixture: version 1": ((*ERNIE, *MIXTURE, *ADAMW), OLD),
}  # fmt: skip


def old_code(store: Path) -> Path:
    """The code of the commit `OLD`."""
    place = store / "version-1"
    if not place.exists():
        packed = subprocess.run(["git", "archive", OLD], cwd=PROJECT, check=True, stdout=subprocess.PIPE)
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(place, filter="data")
    return place


def trained(store: Path, seed: int, way: str) -> dict[str, Any]:
    """Parameters, tokens and held-out nats of a model."""
    words, commit = WAYS[way]
    code = old_code(store) if commit else PROJECT
    root = store / ("version-1-store" if commit else "store")
    name = f"{way.replace(': ', '-').replace(',', '').replace(' ', '-')}-{seed}"
    env = os.environ | {
        "ATELIER_ROOT": str(root),
        "PYTHONPATH": f"{code / 'src'}{os.pathsep}{code}",
    }
    command = ["pretrain", *COMMON, *words, f"train.steps={STEPS[way.split(':')[0]]}", f"train.seed={seed}"]
    subprocess.run([sys.executable, "-m", "atelier", *command, f"name={name}"], env=env, cwd=code, check=True)
    records = [json.loads(path.read_text()) for path in root.glob("model/*/record.json")]
    [found] = [record["summary"] for record in records if record["name"] == name]
    return {"parameters": found["params"], "tokens": found["tokens"], "nats": found["eval_loss"]}


def compared(by_seed: dict[int, dict[str, Any]], way: str, other: str) -> dict[str, Any]:
    """Nats of `way` above `other`, over the seeds."""
    over = [found[way]["nats"] - found[other]["nats"] for found in by_seed.values()]
    return {"nats": round(statistics.mean(over), 4), "interval": interval(over)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--store", type=Path, default=Path("ernie-kind"))
    chosen = parser.parse_args()
    store = chosen.store.resolve()
    store.mkdir(parents=True, exist_ok=True)
    by_seed = {seed: {way: trained(store, seed, way) for way in WAYS} for seed in chosen.seeds}
    numbers = {
        "steps": STEPS,
        "lm: ernie above gpt": compared(by_seed, "lm: ernie", "lm: gpt"),
        "lm: ernie above gpt of equal FLOPs": compared(by_seed, "lm: ernie", "lm: gpt of equal FLOPs"),
        "lm: ernie above version 1": compared(by_seed, "lm, AdamW: ernie", "lm, AdamW: version 1"),
        "mixture: ernie above version 1": compared(by_seed, "mixture: ernie", "mixture: version 1"),
        "by_seed": by_seed,
    }
    keep("ernie_kind", numbers)


if __name__ == "__main__":
    main()
