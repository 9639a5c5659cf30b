"""95 % intervals of means and of ratios over groups of questions. Pure arithmetic; torch-free.

Questions of one group (such as those on one passage) are not independent: the sums of groups are what varies
(Miller 2024, "Adding error bars to evals", 2411.00640, section 2.2).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

Z95 = NormalDist().inv_cdf(0.975)
# two-sided 95 % quantiles of Student's t for 1 .. 5 degrees of freedom, where the expansion is too coarse
T95 = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582)


class Bounded(NamedTuple):
    """A value with its 95 % interval; None where nothing is known of the spread."""

    value: float
    low: float | None = None
    high: float | None = None


def t95(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t (Abramowitz and Stegun 26.7.5 above 5 degrees)."""
    if freedom <= len(T95):
        return T95[max(freedom, 1) - 1]
    z, v = Z95, freedom
    terms = (
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4),
    )
    return z + sum(terms)


def ratio(tops: Sequence[float], bottoms: Sequence[float], groups: Sequence[str]) -> Bounded:
    """sum(tops) / sum(bottoms), with its t-interval over groups by linearisation; a mean if all bottoms are
    1. Raises ZeroDivisionError if the bottoms sum to 0.
    """
    total = math.fsum(bottoms)
    value = math.fsum(tops) / total
    rests = _by_group((top - value * bottom for top, bottom in zip(tops, bottoms, strict=True)), groups)
    number = len(rests)
    if number < 2:
        return Bounded(value)
    spread = math.sqrt(math.fsum(rest * rest for rest in rests.values()) * number / (number - 1)) / total
    half = t95(number - 1) * spread
    return Bounded(value, value - half, value + half)


def mean(values: Sequence[float], groups: Sequence[str]) -> Bounded:
    """The mean of values, with its t-interval over groups."""
    return ratio(values, [1.0] * len(values), groups)


def share(rights: Sequence[float], groups: Sequence[str]) -> Bounded:
    """The share of 1 among 0s and 1s, with Wilson's interval for as many independent questions as have the
    spread of these groups: it stays within 0 and 1, and is not empty if all are right.
    """
    found = mean(rights, groups)
    value, number = found.value, len(set(groups))
    if found.high is None or number < 2:
        return Bounded(value)
    t = t95(number - 1)
    error = (found.high - value) / t
    independent = min(value * (1 - value) / error**2, len(rights)) if error > 1e-12 else float(number)
    scale = 1 + t * t / independent
    middle = (value + t * t / (2 * independent)) / scale
    half = t / scale * math.sqrt(value * (1 - value) / independent + (t / (2 * independent)) ** 2)
    return Bounded(value, max(0.0, middle - half), min(1.0, middle + half))


def paired(ones: Sequence[float], others: Sequence[float], groups: Sequence[str]) -> Bounded:
    """The mean difference `ones` - `others` on the same questions, with its t-interval over groups."""
    return mean([one - other for one, other in zip(ones, others, strict=True)], groups)


def apart(one: Bounded, other: Bounded) -> Bounded:
    """The difference of two estimates on different questions, with the interval of independent ones."""
    value = one.value - other.value
    if None in (one.low, one.high, other.low, other.high):
        return Bounded(value)
    halves = ((high - low) / 2 for _, low, high in (one, other) if low is not None and high is not None)
    half = math.hypot(*halves)
    return Bounded(value, value - half, value + half)


def _by_group(values: Iterable[float], groups: Sequence[str]) -> Mapping[str, float]:
    sums: dict[str, float] = {}
    for group, value in zip(groups, values, strict=True):
        sums[group] = sums.get(group, 0.0) + value
    return sums
