"""The divisors of a number from the configuration, however large it is."""

from math import isqrt

MOST_TRIED = 1 << 20  # above its square, only divisors up to here and their cofactors are found


def divisors(number: int, most: int) -> list[int]:
    """The divisors of `number` (at least 1) up to `most`, ascending."""
    small = [size for size in range(1, min(isqrt(number), MOST_TRIED) + 1) if number % size == 0]
    return sorted({size for one in small for size in (one, number // one) if size <= most})


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of `number` up to `most` (at least 1)."""
    return divisors(number, most)[-1]
