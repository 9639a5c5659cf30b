"""A gang on CPUs whose attention reads the ends of documents in place of masks, as on GPUs:
`python -m tests.parity.gang tests.parity.packed a/run.json ...`

A training without any such attention ends the gang, unless it has no causal decoder.
"""

import torch
from torch import Tensor

from atelier.engine.model import attention, packed
from tests.parity import gang

attend = packed.attend_packed
number = 0


def _reads(device: torch.device) -> bool:
    return True


def _counted(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, *, scale: float | None, window: int
) -> Tensor:
    global number
    number += 1
    return attend(query, key, value, ends, scale=scale, window=window)


def main(words: list[str]) -> int:
    packed.reads_ends, attention.attend_packed = _reads, _counted
    ended = gang.main(words)
    assert number, "no attention read ends of documents"
    return ended
