"""Inference over two ranks beside one, in tokens a CPU-second of all ranks: scores of rows, eight greedy
texts at once, one text.

python benchmarks/split_inference.py [--rounds 3]      orders alternate; medians
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).parent)]

import torch
from machine import keep, use_own_code

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.inference.models import Batch, TextModel
from atelier.engine.inference.opened import opened_weights
from atelier.engine.inference.sampling import continuations
from atelier.engine.inference.scoring import label_scores
from atelier.engine.io.process import leave
from atelier.engine.model.contract import stored
from atelier.engine.model.load import build, initialise
from atelier.engine.parallel.gang import RENDEZVOUS, start_gang

LAYOUTS: dict[str, dict[str, int]] = {
    "one rank": {}, "replicate 2": {"replicate": 2}, "shard 2": {"shard": 2}, "tensor 2": {"tensor": 2},
    "pipeline 2": {"pipeline": 2},
}  # fmt: skip
SPEC = GPT(num_layers=6, hidden=256, num_heads=8, vocab=4096)
ROWS, LENGTH, BATCHES, NEW = 8, 256, 8, 64


def rows(seed: int) -> Batch:
    tokens_BT = torch.randint(0, SPEC.tokens, (ROWS, LENGTH), generator=torch.Generator().manual_seed(seed))
    places_BT = torch.arange(LENGTH).expand(ROWS, -1).contiguous()
    return {
        "tokens_BT": tokens_BT, "positions_BT": places_BT, "documents_BT": torch.zeros_like(tokens_BT),
        "labels_BT": tokens_BT.roll(-1, 1),
    }  # fmt: skip


def scored(model: TextModel) -> int:
    for _ in label_scores(model, map(rows, range(BATCHES)), SPEC.tokens):
        pass
    return ROWS * LENGTH * BATCHES


def written(model: TextModel, texts: int) -> int:
    prompts = [[5 + number] * 16 for number in range(texts)]
    heat_B, draws_B = torch.zeros(texts, dtype=torch.float64), torch.zeros(texts, dtype=torch.float64)
    found = continuations(
        model, prompts, length=16 + NEW, temperatures_B=heat_B, top_p=1.0, draws=lambda _: draws_B, ends=(0,)
    )
    return sum(map(len, found))


WORK: dict[str, Callable[[TextModel], int]] = {
    "scores": scored,
    "8 texts": lambda model: written(model, 8),
    "1 text": lambda model: written(model, 1),
}
TIMES = 3


def compute(name: str, place: Path) -> None:
    """Of one rank: its CPU seconds for each kind of work, reading the weights included, and the tokens."""
    layout = InferenceLayout.model_validate(LAYOUTS[name])
    gang = start_gang(layout.parallel(threads=1).model_copy(update={"device": "cpu"}))
    network = build(SPEC)
    initialise(network, seed=1, name="asked")
    weights = {key: weight.detach() for key, weight in stored(network)}
    found: dict[str, Any] = {}
    for kind, act in WORK.items():
        begin, began, tokens = time.process_time(), time.monotonic(), 0
        with opened_weights(SPEC, weights, layout, gang, torch.float32) as model:
            for _ in range(TIMES if model is not None else 0):
                assert model is not None
                tokens += act(model)
        spent = time.process_time() - begin
        found[kind] = {"tokens": tokens, "cpu_s": spent, "wall_s": time.monotonic() - began}
    place.with_suffix(f".{gang.rank}.json").write_text(json.dumps(found))


def measured(name: str, folder: Path) -> dict[str, dict[str, float]]:
    """Tokens a CPU-second and tokens a second of each kind of work, in one layout."""
    ranks = InferenceLayout.model_validate(LAYOUTS[name]).ranks
    place = folder / name.replace(" ", "-")
    gang = {"WORLD_SIZE": str(ranks), RENDEZVOUS: (folder / f"meet-{time.monotonic_ns()}").as_uri()}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--of", name, str(place)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "RANK": str(rank)} | (gang if ranks > 1 else {}),
        )
        for rank in range(ranks)
    ]
    assert not any(process.wait() for process in processes)
    of_ranks = [json.loads(place.with_suffix(f".{rank}.json").read_text()) for rank in range(ranks)]
    found = {}
    for kind in WORK:
        tokens, wall_s = of_ranks[0][kind]["tokens"], of_ranks[0][kind]["wall_s"]
        cpu_s = sum(each[kind]["cpu_s"] for each in of_ranks)
        found[kind] = {"tokens_per_cpu_s": tokens / cpu_s, "tokens_per_s": tokens / wall_s}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--of", nargs=2)
    given = parser.parse_args()
    if given.of:
        compute(given.of[0], Path(given.of[1]))
        return 0
    use_own_code()
    names = list(LAYOUTS)
    every: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            turned = names[number % len(names) :] + names[: number % len(names)]
            for name in turned:
                every[name].append(measured(name, Path(folder)))
    found = {
        name: {
            kind: {
                unit: round(statistics.median(one[kind][unit] for one in rounds), 1)
                for unit in ("tokens_per_cpu_s", "tokens_per_s")
            }
            for kind in WORK
        }
        for name, rounds in every.items()
    }
    keep("split_inference", {"rounds": given.rounds, "parameters": SPEC.num_params(), "layouts": found})
    return 0


if __name__ == "__main__":
    leave(main())
