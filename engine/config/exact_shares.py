"""Exact shares of weighted sources: every prefix of the stream holds each source within one sample of its
share. Torch-free.

Whole weights w_j of sum W give a period of W samples, in which source j has w_j. In it the sources are
assigned as chairmen of R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980), 323-330:
after n samples the count of source j differs from n w_j / W by at most 1 - 1 / (2k - 2), for k sources.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import fsum, lcm

import numpy as np

from atelier.engine.config.error import ConfigError
from atelier.engine.config.seed import seed_of

PERIOD = 100_000  # samples of the longest period
ROUNDING = 1e-12  # a share this near to a fraction is that fraction
Weights = tuple[int, ...]


def whole_weights(weights: Sequence[float]) -> Weights:
    """Whole numbers in the ratio of the weights; their sum is the period.

    They are exact if the shares have a common denominator of at most 100,000 (as five decimals of sum 1
    have). Otherwise their sum is 100,000: a share is off by less than 1/100,000, and by more only where a
    source of a smaller share gets 1 instead of 0.
    """
    total = fsum(weights)
    shares = [weight / total for weight in weights]
    near = [Fraction(share).limit_denominator(PERIOD) for share in shares]
    period = lcm(*(each.denominator for each in near))
    is_near = all(abs(float(each) - share) < ROUNDING for each, share in zip(near, shares, strict=True))
    if is_near and sum(near) == 1 and period <= PERIOD:
        return tuple(int(each * period) for each in near)
    exact = [PERIOD * share for share in shares]
    found = [max(int(each), 1 if each else 0) for each in exact]
    by_rest = sorted((n for n, each in enumerate(exact) if each), key=lambda n: (found[n] - exact[n], n))
    for n in range(PERIOD - sum(found)):
        found[by_rest[n % len(by_rest)]] += 1
    while sum(found) > PERIOD:  # some got 1 instead of 0
        found[found.index(max(found))] -= 1
    return tuple(found)


@lru_cache(maxsize=64)
def period_of(weights: Weights, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For each sample of a period [W]: its source, and earlier samples of that source in the period. `seed`
    orders sources that are due alike.

    Sample m of source j (m = 0, 1, ...) keeps the bound at places n = 1 .. W from ceil((m + 1/h) W / w_j) to
    floor((m + 1 - 1/h) W / w_j) + 1, h = 2k - 2. Of the samples whose place has come, the one whose last
    place is first is taken, which meets all last places if any order does.
    """
    total, active = sum(weights), [n for n, weight in enumerate(weights) if weight]
    if len(active) == 1:
        return np.full(total, active[0]), np.arange(total)
    h, rank = 2 * len(active) - 2, {n: seed_of(seed, "exact", n) for n in active}
    waiting = [(-(-total // (h * weights[n])), n, 0) for n in active]
    heapq.heapify(waiting)
    due: list[tuple[int, int, int, int]] = []
    sets, drawn = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for place in range(1, total + 1):
        while waiting and waiting[0][0] <= place:
            _, n, m = heapq.heappop(waiting)
            heapq.heappush(due, (((m + 1) * h - 1) * total // (h * weights[n]), rank[n], n, m))
        _, _, n, m = heapq.heappop(due)
        sets[place - 1], drawn[place - 1] = n, m
        if m + 1 < weights[n]:
            heapq.heappush(waiting, (-(-((m + 1) * h + 1) * total // (h * weights[n])), n, m + 1))
    return sets, drawn


@lru_cache(maxsize=64)
def batch_of(weights: Weights, texts: Weights, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As `period_of`, with the samples of each text together, in the order of their numbers."""
    sets, drawn = [], []
    for text in sorted(set(texts)):
        own = tuple(weight if of == text else 0 for weight, of in zip(weights, texts, strict=True))
        if any(own):
            found, before = period_of(own, seed)
            sets.append(found)
            drawn.append(before)
    return np.concatenate(sets), np.concatenate(drawn)


@dataclass(frozen=True)
class Stretch:
    """Samples from `first` on with constant whole weights. `drawn`: earlier samples of each source."""

    first: int
    weights: Weights
    drawn: Weights
    seed: int
    texts: Weights = ()  # of each source the text that it is of, whose samples come together; () = any order

    def _period(self) -> tuple[np.ndarray, np.ndarray]:
        if self.texts:
            return batch_of(self.weights, self.texts, self.seed)
        return period_of(self.weights, self.seed)

    def chosen(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each of these samples [B]: its source, and all earlier samples of that source."""
        sets, drawn = self._period()
        periods, inside = np.divmod(places - self.first, len(sets))
        found = sets[inside]
        weights, before = np.array(self.weights), np.array(self.drawn)
        return found, before[found] + periods * weights[found] + drawn[inside]

    def drawn_before(self, place: int) -> Weights:
        """How often each source was drawn before this sample."""
        sets, _ = self._period()
        periods, rest = divmod(place - self.first, len(sets))
        counts = np.bincount(sets[:rest], minlength=len(self.weights)).tolist()
        every = zip(self.drawn, self.weights, counts, strict=True)
        return tuple(before + periods * weight + count for before, weight, count in every)

    def places(self, source: int, draws: np.ndarray) -> np.ndarray:
        """The samples that are these draws [B] of a source, counted from 0."""
        sets, _ = self._period()
        periods, inside = np.divmod(draws - self.drawn[source], self.weights[source])
        return self.first + periods * len(sets) + np.flatnonzero(sets == source)[inside]

    def place_after(self, source: int, count: int) -> int:
        """The sample after the draw with which a source has been drawn `count` times."""
        periods, m = divmod(count - self.drawn[source] - 1, self.weights[source])
        sets, drawn = self._period()
        inside = int(np.flatnonzero((sets == source) & (drawn == m))[0])
        return self.first + periods * len(sets) + inside + 1


def batches_of(
    phases: Sequence[tuple[int, Sequence[float]]], texts: Sequence[int], rows: int, seed: int
) -> list[Stretch]:
    """The stretches of a stream in which each batch of `rows` samples has the samples of each text together.
    `phases` as in `stretches_of`. Raises ConfigError for shares that are no whole numbers of a batch's
    samples.
    """
    found: list[Stretch] = []
    for begin, weights in phases:
        exact = [rows * weight / fsum(weights) for weight in weights]
        counts = [round(each) for each in exact]
        if any(abs(each - count) > ROUNDING for each, count in zip(exact, counts, strict=True)):
            shares = ", ".join(f"{each:.3g}" for each in exact)
            raise ConfigError(
                "data.assignment",
                f"batches, but the shares of the row sources are {shares} of a batch's {rows} sequences, not"
                " whole numbers",
                "another train.global_batch or other weights, or assignment=exact",
            )
        drawn = found[-1].drawn_before(begin) if found else (0,) * len(counts)
        found.append(Stretch(begin, tuple(counts), drawn, seed, tuple(texts)))
    return found


def stretches_of(
    phases: Sequence[tuple[int, Sequence[float]]], limits: Sequence[int], seed: int, last: int
) -> list[Stretch]:
    """The stretches of a stream. `phases`: first sample and weights, ascending from 0. `limits`: samples of
    each source at most, 0 = none. A source at its limit stops, and the others keep the ratio of their whole
    weights.

    Raises ConfigError if no source is left before sample `last`, the end of the training (0 = unknown).
    """
    found: list[Stretch] = []
    for number, (begin, weights) in enumerate(phases):
        whole = whole_weights(weights)
        first: int | None = begin
        end = phases[number + 1][0] if number + 1 < len(phases) else None
        while first is not None and (end is None or first < end):
            drawn = found[-1].drawn_before(first) if found else (0,) * len(whole)
            is_open = [not limit or count < limit for limit, count in zip(limits, drawn, strict=True)]
            own = tuple(weight * is_on for weight, is_on in zip(whole, is_open, strict=True))
            if not any(own):
                if first < last or not last:
                    raise _exhausted(first, last)
                return found
            found.append(Stretch(first, own, drawn, seed))
            capped = [n for n, weight in enumerate(own) if weight and limits[n]]
            first = min((found[-1].place_after(n, limits[n]) for n in capped), default=None)
    return found


def _exhausted(sample: int, last: int) -> ConfigError:
    where = f"of {last}" if last else "of a training of any length"
    return ConfigError(
        "data.epochs",
        f"every source has reached its cap at sample {sample} {where}",
        "raise a cap, set one to 0 (none), or train for fewer steps",
    )
