"""95 % intervals of measured numbers."""

import math
from typing import Any

import numpy as np
from scipy.stats import rankdata

RESAMPLES = 2000


def auc(scores_N: np.ndarray, classes_N: np.ndarray) -> float:
    """The share of pairs (natural, generated) in which the natural one scores higher."""
    ranks = rankdata(scores_N)
    ones, zeros = int((classes_N == 1).sum()), int((classes_N == 0).sum())
    return (ranks[classes_N == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros)


def resampled(rng: np.random.Generator, number: int, statistic: Any) -> list[float]:
    """The 2.5 and 97.5 % quantiles of `statistic(indices)` over resamples of `number` units."""
    found = [statistic(rng.integers(0, number, number)) for _ in range(RESAMPLES)]
    return [round(float(q), 4) for q in np.nanquantile(found, [0.025, 0.975])]


def mean_of(values: np.ndarray) -> dict[str, Any]:
    """Mean with the half-width of its interval."""
    values = values[np.isfinite(values)]
    half = 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return {"mean": round(float(values.mean()), 4), "interval": round(half, 4), "number": len(values)}
