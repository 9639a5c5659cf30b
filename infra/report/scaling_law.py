"""Fit a scaling law of held-out loss in model size and data: L(N, D) = E + A / N^alpha + B / D^beta, with N
parameters and D tokens (Hoffmann et al., 2203.15556, equation 2), fitted as there by the Huber loss of log L
(appendix D.2). WSD's branches give it many D for the cost of the longest (MiniCPM, 2404.06395, section 4.3).
From it, the best model of a budget of FLOPs; and from trainings with several batches, the critical batch as a
function of the loss (1812.06162; as a power of the loss in MiniCPM, section 3.3). Intervals are of 95 %, by
resampled residuals.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy.optimize import least_squares, minimize
from scipy.special import huber

DELTA = 1e-3  # where the Huber loss of log L becomes linear
EXPONENTS = (0.1, 0.3, 0.6, 1.0)  # starting values of the fit
FLOORS = (0.3, 0.6, 0.9)  # starting values: E as a share of the lowest loss
MOST = 3.0  # upper bound of exponents: a larger one would mean that there is no power law
LENGTHS, SIZES = 4, 3  # fewest different D, and N, for a fit
BATCHES, FURTHEST = 3, 3.0  # fewest different batches; logs from those tried within which a critical one lies
RESAMPLES, QUANTILES = 200, (0.025, 0.975)
PER_TOKEN = 6.0  # FLOPs of a parameter and token: C = 6 N D

Range = tuple[float, float]


@dataclass(frozen=True)
class Trained:
    """One training: parameters, tokens seen, held-out loss in nats per token, tokens of a step (0 = not
    known).
    """

    params: int
    tokens: int
    loss: float
    batch: int = 0

    @property
    def flops(self) -> float:
        return PER_TOKEN * self.params * self.tokens


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

    def best(self, flops: float) -> tuple[float, float]:
        """Parameters and tokens of the lowest loss with C = 6 N D FLOPs (2203.15556, equation 4), at least 1
        of each. Of a law with sizes.
        """
        both, most = self.alpha + self.beta, flops / PER_TOKEN
        ratio = self.alpha * self.size, self.beta * self.data
        if min(ratio) <= 0:  # one term does not move: all goes to the other
            return (1.0, most) if ratio[0] <= ratio[1] else (most, 1.0)
        log_N = (math.log(ratio[0] / ratio[1]) + self.beta * math.log(most)) / both
        params = math.exp(min(max(log_N, 0.0), math.log(most)))
        return params, most / params

    def __str__(self) -> str:
        of_size = f" + {self.size:.3g} / N^{self.alpha:.2f}" if self.params is None else ""
        return f"L = {self.floor:.2f}{of_size} + {self.data:.3g} / D^{self.beta:.2f}"


@dataclass(frozen=True)
class Optimum:
    """The predicted best model for a budget of C = 6 N D FLOPs, each number with its interval."""

    flops: float
    params: float
    tokens: float
    loss: float
    params_range: Range
    tokens_range: Range
    ratio_range: Range  # of tokens per parameter
    loss_range: Range


@dataclass(frozen=True)
class BatchLaw:
    """The critical batch of models with `params` parameters: scale / L^power tokens a step. At it a loss
    takes twice the fewest tokens and twice the fewest steps (1812.06162, equation 2.11). `at`: the lowest
    loss seen; `interval`: of the batch there; `error`: mean |D / fitted - 1| of the tokens to a loss.
    """

    params: int
    scale: float
    power: float
    at: float
    interval: Range
    error: float

    def __call__(self, loss: float) -> float:
        return self.scale * loss**-self.power


def optima(points: Sequence[Trained], law: Law, budgets: Sequence[float], seed: int = 0) -> list[Optimum]:
    """The best models of these budgets by a law over sizes, with intervals by refits of the law to its values
    at the points times resampled residuals.
    """
    best = lowest(points)
    fitted = np.array([law(one.params, one.tokens) for one in best])
    residuals = _widened(np.log([one.loss for one in best]) - np.log(fitted), 5)
    rng, refits = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        losses = fitted * np.exp(rng.choice(residuals, len(best)))
        redrawn = [replace(one, loss=float(loss)) for one, loss in zip(best, losses, strict=True)]
        refits.append(_fit(redrawn, law) or law)
    found = []
    for flops in budgets:
        params, tokens = law.best(flops)
        drawn = [(*other.best(flops), other(*other.best(flops))) for other in refits]
        N, D, loss = (np.array(column) for column in zip(*drawn, strict=True))
        ranges = (_range(N), _range(D), _range(D / N), _range(loss))
        found.append(Optimum(flops, params, tokens, law(params, tokens), *ranges))
    return found


def batch_law(points: Sequence[Trained], seed: int = 0) -> BatchLaw | None:
    """Fit D = (data / (L - floor))^(1/beta) (1 + B / critical(L)): the tokens to a loss rise by the batch's
    share of the critical one (1812.06162, section 5). Of the size with most trainings that has enough batches
    and lengths; None where there is none, or the tokens show no critical batch near those tried.
    """
    best = lowest(points, by_batch=True)
    sized = [[one for one in best if one.params == size and one.batch] for size in {o.params for o in best}]
    fitting = [
        some
        for some in sized
        if len({one.batch for one in some}) >= BATCHES and len(some) >= BATCHES * LENGTHS
    ]
    if not fitting:
        return None
    mine = max(fitting, key=lambda some: (len(some), some[0].params))
    log_D, log_L = np.log([one.tokens for one in mine]), np.log([one.loss for one in mine])
    log_B, low = np.log([one.batch for one in mine]), math.exp(log_L.min())
    middle = float(log_L.mean())

    def fitted(x: np.ndarray) -> np.ndarray:
        floor, least, exponent, critical, power = x
        fewest = least - exponent * (np.log(np.exp(log_L) - floor) - math.log(math.exp(middle) - floor))
        return fewest + np.log1p(np.exp(log_B - critical + power * (log_L - middle)))

    reach = float(log_B.min()) - FURTHEST, float(log_B.max()) + FURTHEST
    bounds = [0.0, -np.inf, 1 / MOST, reach[0], 0.0], [0.98 * low, np.inf, 30.0, reach[1], 30.0]
    starts = [
        [share * low, log_D.mean(), 1 / beta, critical, 3.0]
        for share in FLOORS
        for beta in EXPONENTS[1:3]
        for critical in (log_B.mean(), log_B.max())
    ]

    def fit(targets: np.ndarray, begun: Sequence[Sequence[float] | np.ndarray]) -> np.ndarray:
        solved = [least_squares(lambda x: fitted(x) - targets, x0, bounds=bounds) for x0 in begun]
        return min(solved, key=lambda one: one.cost).x

    x = fit(log_D, starts)
    if min(x[3] - reach[0], reach[1] - x[3]) < 0.1:
        return None
    rng, residuals = np.random.default_rng(seed), _widened(log_D - fitted(x), len(x))
    at = float(log_L.min())
    drawn = []
    for _ in range(RESAMPLES):
        other = fit(fitted(x) + rng.choice(residuals, len(mine)), [x])
        drawn.append(other[3] - other[4] * (at - middle))
    return BatchLaw(
        params=mine[0].params,
        scale=math.exp(x[3] + x[4] * middle),
        power=float(x[4]),
        at=low,
        interval=_range(np.exp(drawn)),
        error=float(np.mean(np.abs(np.expm1(log_D - fitted(x))))),
    )


def _widened(residuals: np.ndarray, fitted: int) -> np.ndarray:
    """Residuals without their mean, as wide as errors: a fit of so many numbers makes them smaller."""
    number = len(residuals)
    return (residuals - residuals.mean()) * math.sqrt(number / max(1, number - fitted))


def _range(values: np.ndarray) -> Range:
    low, high = np.quantile(values, QUANTILES)
    return float(low), float(high)


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


def lowest(points: Sequence[Trained], *, by_batch: bool = False) -> list[Trained]:
    """The best training of each size and length, or of each size, length and batch."""
    best: dict[tuple[int, int, int], Trained] = {}
    for one in points:
        key = (one.params, one.tokens, one.batch if by_batch else 0)
        there = best.get(key)
        if math.isfinite(one.loss) and one.loss > 0 and (there is None or one.loss < there.loss):
            best[key] = one
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


def _fit(points: Sequence[Trained], near: Law | None = None) -> Law | None:
    """The law of these points; `near`: one that is only to be moved, and not searched for."""
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
    if near is None:
        found = [
            minimize(
                lambda x: float(huber(DELTA, logs(*x) - log_L).sum()) / DELTA,
                start,
                method="L-BFGS-B",
                bounds=spread,
            )
            for start in _starts(low, is_joint)
        ]
        e, a, alpha, b, beta = min(found, key=lambda one: one.fun).x
    else:
        lows, highs = np.array(spread).T + np.array([[-1e-9], [1e-9]])
        start = np.clip(_start_of(near, log_N.mean(), log_D.mean()), lows, highs)
        solved = least_squares(
            lambda x: logs(*x) - log_L, start, bounds=(lows, highs), loss="huber", f_scale=DELTA
        )
        e, a, alpha, b, beta = solved.x
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


def _starts(low: float, is_joint: bool) -> list[np.ndarray]:
    found = []
    for share, alpha, beta in product(FLOORS, EXPONENTS if is_joint else (0.0,), EXPONENTS):
        rest = low + math.log((1 - share) / (2 if is_joint else 1))
        found.append(np.array([low + math.log(share), rest, alpha, rest, beta]))
    return found


def _start_of(law: Law, mean_N: float, mean_D: float) -> np.ndarray:
    """A law's numbers as `_fit` has them; of logs at the mean point."""
    tiny = 1e-300
    size = math.log(max(law.size, tiny)) - law.alpha * mean_N
    data = math.log(max(law.data, tiny)) - law.beta * mean_D
    return np.array([math.log(max(law.floor, tiny)), size, law.alpha, data, law.beta])


def _error(law: Law, points: Sequence[Trained]) -> float:
    return float(np.mean([abs(law(one.params, one.tokens) / one.loss - 1) for one in points]))
