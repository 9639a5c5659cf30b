"""The norm of a site's contribution to an outer step, and its clipping: no site moves the others by more than
`link.clip`, an L2 norm over all weights of the contribution.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from atelier.engine.loop.gather import gathered
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid

PIECE = 1 << 20  # numbers that are squared at once

# How much longer a contribution may be as others read it than it was when it was clipped: rounding to whole
# numbers takes half a step up to a whole one, all else only rounds (topk leaves out, powersgd projects).
LONGER = {"int8": 2.0, "int4": 2.0, "int2": 2.0, "bf16": 1.01}
ROUNDED = 1.001


def most_norm(clip: float, codec: str) -> float:
    """The largest norm that a contribution may have as it is read; infinite without a clip."""
    return clip * LONGER.get(codec, ROUNDED) if clip else math.inf


def square_sums(whole: Tensor) -> Iterable[float]:
    """Sums of squares of a whole tensor's pieces, float64. By numpy, whose order of additions no number of
    threads changes.
    """
    numbers = whole.detach().flatten().numpy()
    for begin in range(0, numbers.size, PIECE):
        piece = numbers[begin : begin + PIECE].astype(np.float64)
        yield float(np.square(piece, out=piece).sum())


def norm(squares: Iterable[float]) -> float:
    """The root of an exact sum, which no order changes."""
    return math.sqrt(math.fsum(squares))


def clip_values(norm: float, clip: float) -> dict[str, float]:
    """Metric values of a contribution: its norm before it was clipped, and the share that was sent."""
    return {"link/norm": norm, "link/kept": min(1.0, clip / norm) if norm else 1.0}


@torch.no_grad()
def clipped(
    moved: Mapping[str, Tensor], clip: float, *, grid: Grid, gang: Gang
) -> tuple[dict[str, Tensor], float]:
    """The contribution, shortened to the norm `clip` where it is longer, and its norm before. A collective;
    of whole weights, so that both have the same bits in every layout.
    """
    squares: list[float] = []
    for _, weight in sorted(gathered(moved, grid, gang).items()):
        whole = weight.gather()
        if whole is not None:
            squares += square_sums(whole)
    found = gang.from_first(norm(squares))
    scale = clip / found if found > clip else 1.0
    return {name: one * scale if scale < 1.0 else one for name, one in moved.items()}, found
