"""Causal attention inside the documents of packed rows, from the documents' ends instead of a mask: kernels
for sequences of variable length skip what a mask would hide.

B rows, T tokens, S tokens seen, N documents of the row with the most, H query heads, K key/value heads, E
head width, U and V tokens of all rows
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

ENDS = "ends_BN"  # the batch tensor
WIDEST, MULTIPLE = 256, 8  # of a head, for the kernel (FlashAttention-2, 2307.08691)
PACKED = "torch_attn::_varlen_attn"  # the operation of the kernel, to keep its result
USUAL, SHORTEST = 128, 16  # mean tokens of a document, for the smallest and the largest N
MOST = 8  # N that any row may have
OLDEST = 8  # major compute capability of the first GPUs with the kernel


def reads_ends(device: torch.device) -> bool:
    """Whether batches for `device` get the ends of documents. On CPUs masks are used."""
    return device.type == "cuda" and torch.version.hip is None


def with_ends(batch: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """A batch on the host, with `ends_BN` if the device reads it and documents are contiguous."""
    ends_BN = document_ends(batch["documents_BT"]) if reads_ends(device) else None
    return batch if ends_BN is None else batch | {ENDS: ends_BN}


def document_ends(documents_BT: Tensor) -> Tensor | None:
    """[B, N] int32: where each document of a row ends (its first token's place plus its length), then T. N is
    a power of two and at least T / 128, so that compiled blocks meet few shapes. Padding is a document. None
    if a document is in two places, or if N is above T / 16: the kernel has memory for 128 tokens of each.

    For tensors on the host: on a device it would wait for the number of documents.
    """
    rows, found = [], documents_BT.numpy()
    for documents_T in found:
        last = (documents_T[1:] != documents_T[:-1]).nonzero()[0]
        numbers = documents_T[[*last, -1]]
        if len(set(numbers.tolist())) < len(numbers):
            return None
        rows.append((last + 1).tolist())
    length, most = documents_BT.shape[1], 1 + max(map(len, rows), default=0)
    if most > max(MOST, length // SHORTEST):
        return None
    size = 1 << (max(most, length // USUAL) - 1).bit_length()
    return torch.tensor([row + [length] * (size - len(row)) for row in rows], dtype=torch.int32)


def has_kernel(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether `attend_packed` works for heads of this type and width."""
    if device.type != "cuda":
        return True
    is_new = torch.cuda.get_device_capability(device)[0] >= OLDEST
    return is_new and dtype.itemsize == 2 and width <= WIDEST and not width % MULTIPLE


def attend_packed(
    query_BHTE: Tensor,
    key_BKSE: Tensor,
    value_BKSE: Tensor,
    ends_BN: Tensor,
    *,
    scale: float | None = None,
    window: int = 0,
) -> Tensor:
    """Attention [B, H, T, E] of the last T of S tokens to earlier ones of their document, itself included, at
    most `window` of them (0 = all). Documents that end after S are cut there.
    """
    ends_BN = ends_BN.clamp(max=key_BKSE.shape[2])
    key_BKSE, query_BHTE = key_BKSE.to(value_BKSE.dtype), query_BHTE.to(value_BKSE.dtype)
    if not is_on_gpu(query_BHTE):
        return _document_by_document(query_BHTE, key_BKSE, value_BKSE, ends_BN, scale, window)
    (rows, heads, new), seen = query_BHTE.shape[:3], key_BKSE.shape[2]
    query_UHE, key_VKE, value_VKE = (
        x.transpose(1, 2).flatten(0, 1) for x in (query_BHTE, key_BKSE, value_BKSE)
    )
    mixed = kernel()(
        query_UHE,
        key_VKE,
        value_VKE,
        flat_ends((ends_BN - (seen - new)).clamp(min=0), new),
        flat_ends(ends_BN, seen),
        new,
        seen,
        scale=scale,
        window_size=(window - 1, 0),
        enable_gqa=key_BKSE.shape[1] < heads,
    )
    return mixed.unflatten(0, (rows, new)).transpose(1, 2)


def kernel() -> Callable[..., Tensor]:
    """torch's attention of sequences of variable length. Its module loads the compiler: two seconds."""
    from torch.nn.attention.varlen import varlen_attn

    return cast(Callable[..., Tensor], varlen_attn)


def is_on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def flat_ends(ends_BN: Tensor, length: int) -> Tensor:
    """[B N + 1] int32: ends of documents in the rows of `length` tokens one after another, from 0."""
    begins_B = torch.arange(len(ends_BN), device=ends_BN.device, dtype=ends_BN.dtype) * length
    return F.pad((ends_BN + begins_B[:, None]).flatten(), (1, 0))


def _document_by_document(
    query_BHTE: Tensor,
    key_BKSE: Tensor,
    value_BKSE: Tensor,
    ends_BN: Tensor,
    scale: float | None,
    window: int,
) -> Tensor:
    """The same on a CPU."""
    first, rows = key_BKSE.shape[2] - query_BHTE.shape[2], []
    has_groups = key_BKSE.shape[1] < query_BHTE.shape[1]
    for row, ends in enumerate(ends_BN.tolist()):
        begin, parts = 0, []
        for end in ends:
            if end > max(begin, first):
                skipped = max(first - begin, 0)  # tokens of the document without a query
                new = query_BHTE[row, :, max(begin - first, 0) : end - first]
                places = torch.arange(end - begin)
                far = places[skipped:, None] - places
                may = (far >= 0) & (far < window) if window else far >= 0
                keys, values = (x[row, :, begin:end] for x in (key_BKSE, value_BKSE))
                parts.append(
                    F.scaled_dot_product_attention(
                        new[None], keys[None], values[None], may, scale=scale, enable_gqa=has_groups
                    )
                )
            begin = end
        rows.append(torch.cat(parts, dim=2))
    return torch.cat(rows)
