"""Inference in a gang: `python -m tests.parity.inference case.json`, with RANK and WORLD_SIZE set. case.json
has models and layouts by name. Rank 0 writes the scores and texts of each model in each layout.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atelier.engine.config.batch import ENCODER, NOT_SCORED
from atelier.engine.config.generation import Sampling
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.parallel import InferenceLayout
from atelier.engine.config.registry import ModelSpec, model_of
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.inference.models import Batch, TextModel
from atelier.engine.inference.opened import opened_weights
from atelier.engine.inference.rows import Rows
from atelier.engine.inference.sampling import continuations
from atelier.engine.inference.scoring import label_scores, row_class_logits
from atelier.engine.io.process import leave
from atelier.engine.model.contract import stored
from atelier.engine.model.load import build, initialise
from atelier.engine.parallel.gang import Gang, start_gang

Said = dict[str, Any]
NUM_IDS, ENDS = 64, (3,)
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}


def ids(size: int, seed: int) -> list[int]:
    return torch.randint(4, NUM_IDS, (size,), generator=torch.Generator().manual_seed(seed)).tolist()


def batches(reads_encoder: bool) -> Iterator[Batch]:
    """Five batches of different sizes, the last of one row, with labels from the middle on."""
    for number, (rows, size) in enumerate([(2, 9), (3, 16), (4, 5), (2, 12), (1, 7)]):
        tokens_BT = torch.tensor([ids(size, 10 * number + row) for row in range(rows)])
        labels_BT = tokens_BT.roll(-1, 1)
        labels_BT[:, : size // 2] = NOT_SCORED
        places_BT = torch.arange(size).expand(rows, -1).contiguous()
        batch = {
            "tokens_BT": tokens_BT,
            "positions_BT": places_BT,
            "documents_BT": torch.zeros_like(tokens_BT),
            "labels_BT": labels_BT,
        }
        if reads_encoder:
            read = (tokens_BT.flip(1), places_BT, torch.zeros_like(tokens_BT))
            batch |= dict(zip(ENCODER, read, strict=True))
        yield batch


def said(model: TextModel) -> Said:
    """Log-likelihoods, greedy answers to prompts row by row, and texts drawn together."""
    reads = model.spec.reads_encoder
    scored = [
        [nats_BT.tolist(), best_BT.tolist()]
        for nats_BT, best_BT in label_scores(model, batches(reads), NUM_IDS)
    ]
    prompts = [ids(size, size) for size in (5, 2, 9, 4, 7)]
    rows, greedy = Rows(model, ENDS), []
    served = [
        rows.begin(
            Prefix([2], [], prompt) if reads else Prefix(prompt, []), Sampling(max_tokens=8, temperature=0)
        )
        for prompt in prompts
    ]
    while open_ones := [row for row in served if not row.is_done]:
        rows.step(open_ones)
    greedy = [row.ids for row in served]
    draws = torch.Generator().manual_seed(5)
    uniform = {place: torch.rand(len(prompts), dtype=torch.float64, generator=draws) for place in range(24)}
    drawn = continuations(
        model,
        [[2]] * len(prompts) if reads else prompts,
        length=16,
        temperatures_B=torch.tensor([0.7, 0.0, 1.0, 1.3, 0.5], dtype=torch.float64),
        top_p=0.9,
        draws=uniform.__getitem__,
        ends=ENDS,
        encoders=prompts if reads else None,
    )
    return {"scored": scored, "greedy": greedy, "drawn": drawn, "classes": classes(model)}


def classes(model: TextModel) -> list[list[float]]:
    """The logits of each head for the rows of two segments in each batch; nothing without heads."""
    if "prompts" not in type(model.spec).model_fields and not hasattr(model, "classes"):
        return []
    found = []
    for batch in batches(reads_encoder=False):
        del batch["labels_BT"]
        rows, size = batch["tokens_BT"].shape
        batch["segments_BT"] = (torch.arange(size) >= size // 2).long().expand(rows, -1).contiguous()
        batch["bidirectional_B"] = torch.ones(rows, dtype=torch.int64)
        for spec in (Natural(), Distance()):
            found += row_class_logits(model, spec, batch).tolist()
    return found


def weights_of(spec: ModelSpec) -> dict[str, Tensor]:
    model = build(spec)
    initialise(model, seed=1, name="asked")
    return dict(stored(model))


def ask(spec: ModelSpec, layout: InferenceLayout, gang: Gang, dtype: torch.dtype) -> Said | None:
    with torch.no_grad():
        weights = weights_of(spec)
    with opened_weights(spec, weights, layout, gang, dtype) as model:
        return None if model is None else said(model)


def main(paths: list[str]) -> int:
    path = Path(paths[0])
    case = json.loads(path.read_text())
    layouts = {name: InferenceLayout.model_validate(how) for name, how in case["layouts"].items()}
    gang = start_gang(next(iter(layouts.values())).parallel(threads=1))
    found: dict[str, dict[str, Said | None]] = {}
    for model, arguments in case["models"].items():
        spec = model_of(arguments, model)
        found[model] = {
            name: ask(spec, layout, gang, DTYPES[case["precision"]])
            for name, layout in layouts.items()
            if name not in case["refused"].get(model, [])
        }
    if gang.is_first:
        (path.parent / "answers.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
