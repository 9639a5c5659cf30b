"""Fit a scaling law of held-out loss in model size and data: L(N, D) = E + A / N^alpha + B / D^beta, with N
parameters and D tokens (Hoffmann et al., 2203.15556, equation 2), fitted as there by the Huber loss of log L
(appendix D.2). WSD's branches give it many D for the cost of the longest (MiniCPM, 2404.06395, section 4.3).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import minimize
from scipy.special import huber

DELTA = 1e-3  # where the Huber loss of log L becomes linear
EXPONENTS = (0.1, 0.3, 0.6, 1.0)  # starting values of the fit
FLOORS = (0.3, 0.6, 0.9)  # starting values: E as a share of the lowest loss
MOST = 3.0  # upper bound of exponents: a larger one would mean that there is no power law
LENGTHS, SIZES = 4, 3  # fewest different D, and N, for a fit


@dataclass(frozen=True)
class Trained:
    """One training: parameters, tokens seen, held-out loss in nats per token."""

    params: int
    tokens: int
    loss: float


@dataclass(frozen=True)
class Law:
    """L(N, D) = floor + size / N^alpha + data / D^beta, in nats per token; with one model size, `size` is 0
    and `params` that size. `error`: mean |L / measured - 1| of the points it was fitted to. `foresight`: the
    same for the longest trainings from a fit without them, None where too few are left.
    """

    floor: float
    size: float
    alpha: float
    data: float
    beta: float
    params: int | None
    error: float
    foresight: float | None = None

    def __call__(self, params: float, tokens: float) -> float:
        return self.floor + self.size * params**-self.alpha + self.data * tokens**-self.beta

    def __str__(self) -> str:
        of_size = f" + {self.size:.3g} / N^{self.alpha:.2f}" if self.params is None else ""
        return f"L = {self.floor:.2f}{of_size} + {self.data:.3g} / D^{self.beta:.2f}"


def laws(points: Sequence[Trained]) -> list[Law]:
    """Fit one law over all sizes when there are enough of them, else one over the data for each size that has
    enough lengths. Of several trainings of one size and length the best counts.
    """
    best = lowest(points)
    sizes = sorted({one.params for one in best})
    if len(sizes) >= SIZES:
        law = _fit_and_test(best)
        return [law] if law else []
    fits = [_fit_and_test([one for one in best if one.params == size]) for size in sizes]
    return [law for law in fits if law is not None]


def lowest(points: Sequence[Trained]) -> list[Trained]:
    """The best training of each size and length."""
    best: dict[tuple[int, int], Trained] = {}
    for one in points:
        there = best.get((one.params, one.tokens))
        if math.isfinite(one.loss) and one.loss > 0 and (there is None or one.loss < there.loss):
            best[one.params, one.tokens] = one
    return [best[key] for key in sorted(best)]


def _fit_and_test(points: Sequence[Trained]) -> Law | None:
    law = _fit(points)
    if law is None:
        return None
    longest = max(one.tokens for one in points)
    before = _fit([one for one in points if one.tokens < longest])
    if before is None:
        return law
    seen = _error(before, [one for one in points if one.tokens == longest])
    return replace(law, foresight=seen)


def _fit(points: Sequence[Trained]) -> Law | None:
    sizes = {one.params for one in points}
    is_joint = len(sizes) > 1
    if len({one.tokens for one in points}) < LENGTHS or (is_joint and len(sizes) < SIZES):
        return None
    log_N = np.log([one.params for one in points])
    log_D = np.log([one.tokens for one in points])
    log_L = np.log([one.loss for one in points])

    def logs(e: float, a: float, alpha: float, b: float, beta: float) -> np.ndarray:
        """log L of every point. a and b are the logs of the size and data terms at the mean point."""
        parts = [np.full_like(log_L, e), b - beta * (log_D - log_D.mean())]
        if is_joint:
            parts.append(a - alpha * (log_N - log_N.mean()))
        return np.logaddexp.reduce(parts)

    low = float(log_L.min())
    spread = [(low - 5.0, low), (low - 12.0, low + 2.0), (0.0, MOST), (low - 12.0, low + 2.0), (0.0, MOST)]
    found = []
    for share, alpha, beta in product(FLOORS, EXPONENTS if is_joint else (0.0,), EXPONENTS):
        rest = low + math.log((1 - share) / (2 if is_joint else 1))
        start = np.array([low + math.log(share), rest, alpha, rest, beta])
        found.append(
            minimize(
                lambda x: float(huber(DELTA, logs(*x) - log_L).sum()) / DELTA,
                start,
                method="L-BFGS-B",
                bounds=spread,
            )
        )
    e, a, alpha, b, beta = min(found, key=lambda one: one.fun).x
    law = Law(
        floor=math.exp(e),
        size=math.exp(a + alpha * log_N.mean()) if is_joint else 0.0,
        alpha=float(alpha) if is_joint else 0.0,
        data=math.exp(b + beta * log_D.mean()),
        beta=float(beta),
        params=None if is_joint else points[0].params,
        error=0.0,
    )
    return replace(law, error=_error(law, points))


def _error(law: Law, points: Sequence[Trained]) -> float:
    return float(np.mean([abs(law(one.params, one.tokens) / one.loss - 1) for one in points]))
