"""Encode a weight's contribution into the tensors of a message, and decode it. Works on whole tensors on the
CPU, so a site's layout does not matter. Decoding is elementwise and rounds each operation alone, so all sites
get equal bits.

int8, int4, int2: whole numbers of 8, 4 or 2 bits with a scale for each block of numbers; the block's largest
magnitude is the largest number. Zero stays zero: a weight that has not moved is not moved.

topk: the numbers of largest magnitude, with their indices; the others are zero.

powersgd: two thin factors of a matrix, by one step of power iteration from a random start (PowerSGD, Vogels
et al., 1905.13727, algorithm 1). The paper starts from the factor of the step before; here each round draws
its start, so no state is kept between rounds.

Letters: N numbers of a tensor; whole numbers: K blocks of B numbers, X bytes; topk: K numbers sent; powersgd:
M rows and N columns of a matrix, rank R.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.encoded import is_factored, matrix, num_sent, parts_of
from atelier.engine.io.tensorfile import TensorEntry


def encode(codec: Codec, weight: TensorEntry, whole: Tensor, seed: int) -> list[Tensor]:
    """The tensors of `parts_of(codec, weight)`. `seed`: for a codec that draws numbers."""
    if codec.kind == "none":
        return [whole]
    if codec.kind == "bf16":
        return [whole.to(torch.bfloat16)]
    numbers = whole.to(torch.float32)
    if codec.bits:
        packed = parts_of(codec, weight)[1].num_bytes
        return [*encode_whole(numbers.flatten(), codec.bits, codec.block, packed)]
    if codec.kind == "topk":
        return [*encode_largest(numbers.flatten(), num_sent(codec, numbers.numel()))]
    if is_factored(codec, weight.shape):
        return [*encode_factors(numbers.reshape(matrix(weight.shape)), codec.rank, seed)]
    return [numbers]


def decode(codec: Codec, weight: TensorEntry, parts: Sequence[Tensor], place: str) -> Tensor:
    """The contribution of `parts`, which have the types and shapes of `parts_of`. Raises DataError, whose
    text begins with `place`, for invalid or non-finite values.
    """
    whole = _decoded(codec, weight, parts, place)
    if not torch.isfinite(whole).all():
        raise DataError(f"{place}: is not finite")
    return whole


def _decoded(codec: Codec, weight: TensorEntry, parts: Sequence[Tensor], place: str) -> Tensor:
    numbers = math.prod(weight.shape)
    if codec.kind == "bf16":
        return parts[0].to(torch.float32)
    if codec.bits:
        found = decode_whole(parts[0], parts[1], codec.bits, codec.block, numbers, place)
        return found.view(weight.shape)
    if codec.kind == "topk":
        return decode_largest(parts[0], parts[1], numbers, place).view(weight.shape)
    if len(parts) == 2:
        return decode_factors(parts[0], parts[1]).view(weight.shape)
    return parts[0]


def largest(bits: int) -> int:
    """The largest whole number; the smallest is its negative: 127, 7, 1."""
    return (1 << (bits - 1)) - 1


def encode_whole(numbers_N: Tensor, bits: int, block: int, num_bytes: int) -> tuple[Tensor, Tensor]:
    """The scales, and the codes (whole number + largest) packed, the first in the lowest bits of a byte."""
    most = largest(bits)
    padded_KB = torch.nn.functional.pad(numbers_N, (0, -numbers_N.numel() % block)).view(-1, block)
    scales_K = padded_KB.abs().amax(1) / most if len(padded_KB) else padded_KB.new_empty(0)
    divisors_K1 = torch.where(scales_K > 0, scales_K, 1.0)[:, None]  # with scale 0 all become 0
    codes_KB = (padded_KB / divisors_K1).round_().clamp_(-most, most).add_(most).to(torch.uint8)
    per_byte = 8 // bits
    codes_N = codes_KB.flatten()[: numbers_N.numel()]
    codes_N = torch.nn.functional.pad(codes_N, (0, num_bytes * per_byte - codes_N.numel()))
    packed_X = torch.zeros(num_bytes, dtype=torch.uint8)
    for place, part_X in enumerate(codes_N.view(-1, per_byte).unbind(1)):
        packed_X |= part_X << (place * bits)
    return scales_K, packed_X


def decode_whole(scales_K: Tensor, packed_X: Tensor, bits: int, block: int, count: int, place: str) -> Tensor:
    """The first `count` numbers. Raises DataError for a code that is too large."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    codes_N = ((packed_X[:, None] >> shifts) & ((1 << bits) - 1)).flatten()[:count]
    if count and int(codes_N.max()) > 2 * largest(bits):
        raise DataError(f"{place}: has a code above {2 * largest(bits)}")
    whole_N = codes_N.to(torch.float32) - largest(bits)
    return whole_N * scales_K.repeat_interleave(block)[:count]


def encode_largest(numbers_N: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The indices, in order, and the values. Of equal magnitudes the first are taken."""
    if not count:
        return torch.empty(0, dtype=torch.int32), numbers_N[:0]
    size_N = numbers_N.abs()
    least = size_N.kthvalue(numbers_N.numel() - count + 1).values
    above = (size_N > least).nonzero().flatten()
    equal = (size_N == least).nonzero().flatten()[: count - len(above)]
    places_K = torch.cat([above, equal]).sort().values
    return places_K.to(torch.int32), numbers_N[places_K]


def decode_largest(places_K: Tensor, values_K: Tensor, count: int, place: str) -> Tensor:
    """All `count` numbers. Raises DataError for indices that are outside, repeated or not in order."""
    where = places_K.to(torch.int64)
    if len(where) and not (where[0] >= 0 and where[-1] < count and (where[1:] > where[:-1]).all()):
        raise DataError(f"{place}: its indices do not rise from 0 to below {count}")
    numbers_N = torch.zeros(count)
    numbers_N[where] = values_K
    return numbers_N


def encode_factors(matrix_MN: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """The left factor, with orthonormal columns, and the right factor."""
    start_NR = torch.randn(matrix_MN.shape[1], rank, generator=torch.Generator().manual_seed(seed))
    left_MR = torch.linalg.qr(matrix_MN @ start_NR).Q
    return left_MR.contiguous(), (matrix_MN.mT @ left_MR).contiguous()


def decode_factors(left_MR: Tensor, right_NR: Tensor) -> Tensor:
    """The factors' product as a sum of outer products, in order and each operation rounded alone: the bits of
    a matrix product depend on the machine.
    """
    total_MN = torch.zeros(len(left_MR), len(right_NR))
    for left_M, right_N in zip(left_MR.unbind(1), right_NR.unbind(1), strict=True):
        product_MN = left_M[:, None] * right_N
        total_MN += product_MN
    return total_MN
