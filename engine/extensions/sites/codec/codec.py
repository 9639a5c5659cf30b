"""A weight's contribution as the tensors of a message, and back. Always of whole tensors on the CPU, so that
nothing depends on a site's layout; decoding is elementwise, each operation rounded alone, so that every site
reads the same bits.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from atelier.engine.config.codec import Codec
from atelier.engine.config.error import DataError
from atelier.engine.extensions.sites.codec import powersgd, topk, whole_numbers
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.link.encoded import is_factored, matrix, num_sent, parts_of


def encode(codec: Codec, weight: TensorEntry, whole: Tensor, seed: int) -> list[Tensor]:
    """The tensors of `parts_of(codec, weight)`. `seed`: of what the codec draws."""
    if codec.kind == "none":
        return [whole]
    if codec.kind == "bf16":
        return [whole.to(torch.bfloat16)]
    numbers = whole.to(torch.float32)
    if codec.bits:
        packed = parts_of(codec, weight)[1].num_bytes
        return [*whole_numbers.encode(numbers.flatten(), codec.bits, codec.block, packed)]
    if codec.kind == "topk":
        return [*topk.encode(numbers.flatten(), num_sent(codec, numbers.numel()))]
    if is_factored(codec, weight.shape):
        return [*powersgd.encode(numbers.reshape(matrix(weight.shape)), codec.rank, seed)]
    return [numbers]


def decode(codec: Codec, weight: TensorEntry, parts: Sequence[Tensor], place: str) -> Tensor:
    """The contribution that `parts`, of the types and shapes of `parts_of`, stand for. Raises DataError, that
    begins with `place`, for what stands for none.
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
        found = whole_numbers.decode(parts[0], parts[1], codec.bits, codec.block, numbers, place)
        return found.view(weight.shape)
    if codec.kind == "topk":
        return topk.decode(parts[0], parts[1], numbers, place).view(weight.shape)
    if len(parts) == 2:
        return powersgd.decode(parts[0], parts[1]).view(weight.shape)
    return parts[0]
