"""Clip the L2 norm of a site's contribution, over all its weights, to `train.link.clip`."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from atelier.engine.loop.gather import gathered
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid

PIECE = 1 << 20  # numbers that are squared at once

# How much longer a contribution may be decoded than when it was clipped. int8, int4 and int2 may round each
# number up to twice its size; the others only round (topk leaves numbers out, powersgd projects).
LONGER = {"int8": 2.0, "int4": 2.0, "int2": 2.0, "bf16": 1.01}
ROUNDED = 1.001


def most_norm(clip: float, codec: str) -> float:
    """The largest norm that a decoded contribution may have; infinite without a clip."""
    return clip * LONGER.get(codec, ROUNDED) if clip else math.inf


def square_sums(whole: Tensor) -> Iterable[float]:
    """Sums of squares of a whole tensor's pieces in float64. By numpy, whose order of additions does not
    depend on the number of threads.
    """
    numbers = whole.detach().flatten().numpy()
    for begin in range(0, numbers.size, PIECE):
        piece = numbers[begin : begin + PIECE].astype(np.float64)
        yield float(np.square(piece, out=piece).sum())


def norm(squares: Iterable[float]) -> float:
    """The root of an exact sum, which does not depend on the order."""
    return math.sqrt(math.fsum(squares))


def clip_values(norm: float, clip: float) -> dict[str, float]:
    """Metrics of a contribution: its norm before clipping, and the share that was sent."""
    return {"link/norm": norm, "link/kept": min(1.0, clip / norm) if norm else 1.0}


@torch.no_grad()
def clipped(
    moved: Mapping[str, Tensor], clip: float, *, grid: Grid, gang: Gang
) -> tuple[dict[str, Tensor], float]:
    """The contribution, scaled down to the norm `clip` if it is longer, and its norm before. A collective
    over whole weights, so that both have equal bits in every layout.
    """
    squares: list[float] = []
    for _, weight in sorted(gathered(moved, grid, gang).items()):
        whole = weight.gather()
        if whole is not None:
            squares += square_sums(whole)
    found = gang.from_first(norm(squares))
    scale = clip / found if found > clip else 1.0
    return {name: one * scale if scale < 1.0 else one for name, one in moved.items()}, found
