"""Measure the loss of a conversion: mean loss of held-out tokens before and after.

B rows, T tokens, D hidden, V vocabulary
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.evaluation import scored_name
from atelier.engine.data.corpus import HELD_OUT
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.model.contract import Model
from atelier.engine.objective.chunked import objective_sums

ROWS = 16


def held_out(
    tokens: ArtifactInput, scratch: Path, sequence: int, number: int
) -> tuple[list[dict[str, np.ndarray]], str]:
    """Batches of the first windows, up to `number` tokens, and the name of that text."""
    windows = Windows(tokens, scratch, HELD_OUT, sequence)
    count = min(len(windows), max(1, number // sequence))
    batches = [windows.batch(np.arange(first, min(count, first + ROWS))) for first in range(0, count, ROWS)]
    return batches, scored_name(tokens.record.fingerprint, count * sequence, sequence)


def comparable(batches: list[dict[str, np.ndarray]], ids: Mapping[int, int]) -> list[dict[str, np.ndarray]]:
    """The rows of which another tokenizer has every token, so that both models can be compared."""
    known = np.array(sorted(ids))
    found = []
    for batch in batches:
        is_padding_BT = batch["documents_BT"] < 0
        whole_B = (np.isin(batch["tokens_BT"], known) | is_padding_BT).all(1)
        is_scored_BT = np.isin(batch["labels_BT"], known)
        rows = {name: values[whole_B] for name, values in batch.items()}
        rows["labels_BT"] = np.where(is_scored_BT, batch["labels_BT"], NOT_SCORED)[whole_B]
        found += [rows] if whole_B.any() else []
    return found


@torch.inference_mode()
def mean_loss(
    model: Model,
    batches: list[dict[str, np.ndarray]],
    device: torch.device,
    ids: Mapping[int, int] | None = None,
) -> float:
    """The mean loss, nats per token. `ids`: old id -> the model's id of the same token, for every token."""
    total, count = 0.0, 0
    for batch in batches:
        given = {name: torch.from_numpy(values).to(device) for name, values in batch.items()}
        if ids is not None:
            given = given | {name: _renamed(given[name], ids) for name in ("tokens_BT", "labels_BT")}
            given["tokens_BT"] = given["tokens_BT"].clamp(min=0)  # padding
        output = model(given)
        _, sums = objective_sums(output.hidden, model.head_weight, given["labels_BT"], {})
        total += float(sums["lm"])
        count += int((given["labels_BT"] != NOT_SCORED).sum())
    return total / max(1, count)


def _renamed(tokens_BT: Tensor, ids: Mapping[int, int]) -> Tensor:
    """The same tokens with new ids; NOT_SCORED for tokens without one."""
    table_V = torch.full((max(ids) + 2,), NOT_SCORED, device=tokens_BT.device)
    for old, new in ids.items():
        table_V[old] = new
    return torch.where(tokens_BT >= 0, table_V[tokens_BT.clamp(min=0, max=len(table_V) - 1)], NOT_SCORED)


def old_in_new(old: Vocabulary, new: Vocabulary) -> Mapping[int, int]:
    """Old id -> new id of the same token."""
    ids = {name: number for number, name in enumerate(new.names()) if name}
    return {number: ids[name] for number, name in enumerate(old.names()) if name in ids}
