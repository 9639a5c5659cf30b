"""Attention: masks, rotary angles, key/value cache.

B rows, T tokens, S tokens seen (those in the cache included), H query heads, K key/value heads, E head width
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.rope import Rope
from atelier.engine.model.packed import attend_packed

ROWS = 256  # queries at a time in attention with an additive mask


@dataclass
class Seen:
    """One block's cached keys and values of this rank's heads, in buffers [B, K, max_len, E] that the first
    token makes, filled up to `length`.
    """

    max_len: int
    dtype: torch.dtype
    length: int = 0
    buffers: tuple[Tensor, Tensor] | None = None

    def extend(self, key_BKTE: Tensor, value_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values; returns all of them [B, K, S, E]."""
        rows, heads, new, width = key_BKTE.shape
        if self.buffers is None:
            shape, kind = (rows, heads, self.max_len, width), {"dtype": self.dtype, "device": key_BKTE.device}
            self.buffers = torch.zeros(shape, **kind), torch.zeros(shape, **kind)
        begin, self.length = self.length, self.length + new
        for buffer, values in zip(self.buffers, (key_BKTE, value_BKTE), strict=True):
            buffer[:, :, begin : self.length] = values
        return self.seen()

    def seen(self) -> tuple[Tensor, Tensor]:
        """All keys and values so far [B, K, S, E]. At least one token must be cached."""
        assert self.buffers is not None  # made by the first token
        keys, values = self.buffers
        return keys[:, :, : self.length], values[:, :, : self.length]


@dataclass
class Cache:
    """The decoding cache: each block's keys and values; documents, branches and positions for masks.
    `token_bytes`: bytes of keys and values of one token of a row.
    """

    blocks: list[Seen]
    documents_BS: Tensor
    branches_BS: Tensor
    length: int = 0
    positions_BS: Tensor | None = None  # for models with a window
    token_bytes: int = 0

    @classmethod
    def empty(
        cls,
        blocks: Iterable[tuple[int, int]],
        batch_size: int,
        max_len: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """For `max_len` tokens in each of `batch_size` rows; `blocks`: K and E of each block with a cache."""
        sizes = [heads * width for heads, width in blocks]
        return cls(
            blocks=[Seen(max_len, dtype) for _ in sizes],
            documents_BS=torch.full((batch_size, max_len), -1, device=device),
            branches_BS=torch.zeros((batch_size, max_len), dtype=torch.long, device=device),
            token_bytes=2 * sum(sizes) * dtype.itemsize,
        )

    def extend(self, documents_BT: Tensor, branches_BT: Tensor | None) -> tuple[Tensor, Tensor]:
        """Append T new tokens; returns documents and branches of all S tokens seen, new ones included.

        Raises ConfigError if they do not fit.
        """
        end, room = self.length + documents_BT.shape[1], self.documents_BS.shape[1]
        if end > room:
            raise ConfigError(
                "cache", f"{end} tokens do not fit in {room}", "make the cache with a larger max_len"
            )
        self.documents_BS[:, self.length : end] = documents_BT
        self.branches_BS[:, self.length : end] = 0 if branches_BT is None else branches_BT
        self.length = end
        return self.documents_BS[:, :end], self.branches_BS[:, :end]

    def seen_positions(self, positions_BT: Tensor) -> Tensor:
        """Positions of all S tokens seen, from those of the T new ones, which `extend` has appended."""
        if self.positions_BS is None:
            self.positions_BS = torch.zeros_like(self.documents_BS)
        self.positions_BS[:, self.length - positions_BT.shape[1] : self.length] = positions_BT
        return self.positions_BS[:, : self.length]


def attention_mask(
    documents_BT: Tensor,
    documents_BS: Tensor,
    branches_BS: Tensor | None = None,
    places_T: Tensor | None = None,
    bidirectional_B: Tensor | None = None,
) -> Tensor:
    """[B, 1, T, S] bool: which of S tokens each of T tokens may attend to: no later ones (except in
    bidirectional rows), only in its own document, only in branch 0 or its own branch.

    `places_T`: the tokens' positions in the row of S; None = the last ones. Branch 0 is a shared prompt:
    every option after it attends to it, but options do not attend to each other.
    """
    num_new, num_seen = documents_BT.shape[1], documents_BS.shape[1]
    begin = num_seen - num_new
    may = documents_BT[:, :, None] == documents_BS[:, None, :]
    if branches_BS is not None:
        may &= (branches_BS[:, None, :] == 0) | (branches_BS[:, begin:, None] == branches_BS[:, None, :])
    if places_T is None:
        places_T = torch.arange(begin, num_seen, device=documents_BS.device)
    not_later = places_T[:, None] >= torch.arange(num_seen, device=documents_BS.device)
    if bidirectional_B is not None:
        not_later = not_later | (bidirectional_B > 0)[:, None, None]
    return (may & not_later)[:, None]


def within(mask_B1TS: Tensor, window: int, at_BT: Tensor, at_BS: Tensor) -> Tensor:
    """The mask without tokens that are `window` or more earlier; `at`: positions of tokens in their text."""
    return mask_B1TS & (at_BT[:, :, None] - at_BS[:, None, :] < window)[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as additive scores: 0 if attention is allowed, else -inf."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def attend(
    query_BHTE: Tensor,
    key_BKSE: Tensor,
    value_BKSE: Tensor,
    mask_B1TS: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """Attention [B, H, T, E] of the last T of S tokens; `scale` of the scores, None = 1/sqrt(E).

    A bool mask uses torch's kernels, on GPUs an additive one too. Otherwise an additive mask uses plain
    products, ROWS queries at a time, and if causal only keys up to the last of these queries: twice as fast
    as torch's kernel for bf16 on a CPU, and exact in the gradient of a learned mask.
    """
    groups = query_BHTE.shape[1] // key_BKSE.shape[1]
    if mask_B1TS.dtype == torch.bool or (mask_B1TS.is_cuda and not mask_B1TS.requires_grad):
        return F.scaled_dot_product_attention(
            query_BHTE, key_BKSE, value_BKSE, attn_mask=mask_B1TS, enable_gqa=groups > 1, scale=scale
        )
    if groups > 1:
        key_BKSE, value_BKSE = key_BKSE.repeat_interleave(groups, 1), value_BKSE.repeat_interleave(groups, 1)
    num_new, num_seen = mask_B1TS.shape[2:]
    query_BHTE = query_BHTE * (query_BHTE.shape[-1] ** -0.5 if scale is None else scale)
    mixed = []
    for begin in range(0, num_new, ROWS):
        end = min(begin + ROWS, num_new)
        seen = num_seen - num_new + end if is_causal else num_seen
        scores = query_BHTE[:, :, begin:end] @ key_BKSE[:, :, :seen].transpose(2, 3)
        weights = (scores + mask_B1TS[:, :, begin:end, :seen]).softmax(-1)
        mixed.append(weights @ value_BKSE[:, :, :seen])
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=2)


def rope_angles(
    positions_BT: Tensor, head_width: int, theta: float, dtype: torch.dtype, rope: Rope | None = None
) -> Tensor:
    """cos and sin [2, B, T, 1, E/2] of RoPE (2104.09864), with frequencies scaled by `rope`.

    Computed from positions each time: a buffer would be empty in a model built on the meta device.
    """
    steps = torch.arange(0, head_width, 2, dtype=dtype, device=positions_BT.device)
    turns = 1.0 / theta ** (steps / head_width)
    stretched, factor = (turns, 1.0) if rope is None else _stretched(turns, theta, rope)
    angles = positions_BT.to(dtype)[:, :, None, None] * stretched
    found = torch.stack((angles.cos(), angles.sin()))
    return found if factor == 1.0 else found * factor


def _stretched(turns: Tensor, theta: float, rope: Rope) -> tuple[Tensor, float]:
    """The frequencies, radians per token, and a factor of cosines and sines, as in transformers."""
    if rope.kind == "plain":
        return turns, 1.0
    if rope.kind == "linear":
        return turns / rope.factor, 1.0
    if rope.kind == "llama3":
        made = rope.original * turns / (2 * math.pi)  # turns within a training text
        kept = ((made - rope.low) / (rope.high - rope.low)).clamp(0, 1)
        return (1 - kept) * turns / rope.factor + kept * turns, 1.0
    width = 2 * len(turns)

    def place(made: float) -> float:
        """The index of the frequency that makes this many turns."""
        return width * math.log(rope.original / (made * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(place(rope.fast)), 0)
    last = min(math.ceil(place(rope.slow)), width - 1)
    last_at = last + 0.001 if first == last else last
    places = torch.arange(len(turns), dtype=turns.dtype, device=turns.device)
    divided = ((places - first) / (last_at - first)).clamp(0, 1)
    factor = rope.attention or 0.1 * math.log(rope.factor) + 1.0
    return divided * turns / rope.factor + (1 - divided) * turns, factor


def rotate(x_BTHE: Tensor, rope_2BT1E: Tensor) -> Tensor:
    """Rotate the pairs (i, i + E/2) in the precision of the angles; the result has the type of x."""
    cos, sin = rope_2BT1E
    left, right = x_BTHE.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x_BTHE.dtype)


class Attend(nn.Module):
    """`attend` as a module, which can be wrapped; or `attend_packed`, with the ends of documents [B, N] int32
    in place of a mask. `is_causal`: masks never allow later tokens. `window`: tokens seen, 0 = all; only
    `attend_packed` reads it, masks have the window in them.
    """

    def __init__(self, *, is_causal: bool = True, scale: float | None = None, window: int = 0) -> None:
        super().__init__()
        self.is_causal, self.scale, self.window = is_causal, scale, window

    def forward(self, query_BHTE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, mask: Tensor) -> Tensor:
        if mask.dtype == torch.int32:
            return attend_packed(query_BHTE, key_BKSE, value_BKSE, mask, scale=self.scale, window=self.window)
        return attend(query_BHTE, key_BKSE, value_BKSE, mask, is_causal=self.is_causal, scale=self.scale)
