"""Whole numbers of 8, 4 or 2 bits with a scale for each block of numbers: the block's largest magnitude is
the largest number. Zero stays zero: a weight that has not moved is not moved.

Letters: N numbers of a tensor, K blocks, B numbers of a block, X bytes.
"""

import torch
from torch import Tensor

from atelier.engine.config.error import DataError


def largest(bits: int) -> int:
    """The largest whole number; the smallest is its negative: 127, 7, 1."""
    return (1 << (bits - 1)) - 1


def encode(numbers_N: Tensor, bits: int, block: int, num_bytes: int) -> tuple[Tensor, Tensor]:
    """The scales, and the codes (whole number + largest) packed, the first in the lowest bits of a byte."""
    most = largest(bits)
    padded_KB = torch.nn.functional.pad(numbers_N, (0, -numbers_N.numel() % block)).view(-1, block)
    scales_K = padded_KB.abs().amax(1) / most if len(padded_KB) else padded_KB.new_empty(0)
    divisors_K1 = torch.where(scales_K > 0, scales_K, 1.0)[:, None]  # of so small a block 0 are all
    codes_KB = (padded_KB / divisors_K1).round_().clamp_(-most, most).add_(most).to(torch.uint8)
    per_byte = 8 // bits
    codes_N = codes_KB.flatten()[: numbers_N.numel()]
    codes_N = torch.nn.functional.pad(codes_N, (0, num_bytes * per_byte - codes_N.numel()))
    packed_X = torch.zeros(num_bytes, dtype=torch.uint8)
    for place, part_X in enumerate(codes_N.view(-1, per_byte).unbind(1)):
        packed_X |= part_X << (place * bits)
    return scales_K, packed_X


def decode(scales_K: Tensor, packed_X: Tensor, bits: int, block: int, count: int, place: str) -> Tensor:
    """The first `count` numbers. Raises DataError for a code that no number has."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    codes_N = ((packed_X[:, None] >> shifts) & ((1 << bits) - 1)).flatten()[:count]
    if count and int(codes_N.max()) > 2 * largest(bits):
        raise DataError(f"{place}: has a code above {2 * largest(bits)}")
    whole_N = codes_N.to(torch.float32) - largest(bits)
    return whole_N * scales_K.repeat_interleave(block)[:count]
