"""The numbers of largest magnitude alone, with their places; the others are zero.

Letters: N numbers of a tensor, K of them sent.
"""

import torch
from torch import Tensor

from atelier.engine.config.error import DataError


def encode(numbers_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places, in order, and the values; of numbers of one magnitude the first ones."""
    if not count:
        return torch.empty(0, dtype=torch.int32), numbers_N[:0]
    size_N = numbers_N.abs()
    least = size_N.kthvalue(numbers_N.numel() - count + 1).values
    above = (size_N > least).nonzero().flatten()
    equal = (size_N == least).nonzero().flatten()[: count - len(above)]
    places_K = torch.cat([above, equal]).sort().values
    return places_K.to(torch.int32), numbers_N[places_K]


def decode(places_K: Tensor, values_K: Tensor, count: int, place: str) -> Tensor:
    """All `count` numbers. Raises DataError for places that are outside, repeated or not in order."""
    where = places_K.to(torch.int64)
    if len(where) and not (where[0] >= 0 and where[-1] < count and (where[1:] > where[:-1]).all()):
        raise DataError(f"{place}: its indices do not rise from 0 to below {count}")
    numbers_N = torch.zeros(count)
    numbers_N[where] = values_K
    return numbers_N
