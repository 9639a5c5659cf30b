"""Operations on a vocabulary slice, with collectives over the other ranks' slices.

N tokens, V vocabulary of this rank's slice
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

NO_MASS = -1e30  # a logit with probability 0 and finite log-probability


@dataclass(frozen=True)
class VocabSlice:
    """Rows `begin` .. `begin + size - 1` of a vocabulary that is split over the ranks of `group` in order."""

    group: dist.ProcessGroup
    begin: int
    size: int

    def sum(self, part: Tensor) -> Tensor:
        """The elementwise sum of all ranks' parts, in place."""
        dist.all_reduce(part, group=self.group)
        return part

    def max(self, part: Tensor) -> Tensor:
        """The elementwise maximum of all ranks' parts, in place."""
        dist.all_reduce(part, op=dist.ReduceOp.MAX, group=self.group)
        return part

    def whole(self, part_NV: Tensor) -> Tensor:
        """All ranks' columns concatenated: [N, V of all slices]."""
        count = dist.get_world_size(self.group)
        parts = [torch.empty_like(part_NV) for _ in range(count)]
        dist.all_gather(parts, part_NV.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)

    def mine(self, whole_NV: Tensor) -> Tensor:
        """This rank's columns of the whole vocabulary's."""
        return whole_NV[:, self.begin : self.begin + self.size]


def own_ids(ids: int, part: VocabSlice | None) -> int:
    """The number of rows of this slice that are tokens, not padding, of `ids` in the vocabulary."""
    return ids if part is None else min(max(ids - part.begin, 0), part.size)


def without_padding(logits_NV: Tensor, ids: int, columns: int) -> Tensor:
    """The logits with all mass on the first `ids` columns; the shape stays."""
    return F.pad(logits_NV[:, :ids], (0, columns - ids), value=NO_MASS)


def ranks_of(group: dist.ProcessGroup | None) -> int:
    """The number of ranks of a group; 1 without one."""
    return 1 if group is None else dist.get_world_size(group)


def summed(part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of all ranks' parts, as a new tensor."""
    whole = part.clone()
    if group is not None:
        dist.all_reduce(whole, group=group)
    return whole


def log_softmax(logits_NV: Tensor, part: VocabSlice | None) -> Tensor:
    """log softmax over the whole vocabulary."""
    if part is None:
        return logits_NV.log_softmax(1)
    most_N1 = part.max(logits_NV.amax(1, keepdim=True))
    shifted_NV = logits_NV - most_N1
    return shifted_NV - part.sum(shifted_NV.exp().sum(1, keepdim=True)).log()


class TokenDistribution:
    """Probabilities and log-probabilities of logits [N, V] at any temperature over the whole vocabulary, each
    computed once for all objectives and students. Do not change them in place, unless the distribution
    `is_private` to one reader, which calls `log_p`, then `p`, once each: then `p` reuses the memory of
    `log_p`.
    """

    def __init__(self, logits_NV: Tensor, part: VocabSlice | None = None) -> None:
        self._logits_NV: Tensor | None = logits_NV
        self._part, self.is_private = part, False
        self._log_p: dict[float, Tensor] = {}
        self._p: dict[float, Tensor] = {}

    @property
    def logits_NV(self) -> Tensor:
        assert self._logits_NV is not None, "the logits were consumed by log_p of a private distribution"
        return self._logits_NV

    def log_p(self, temperature: float = 1.0) -> Tensor:
        """log softmax(logits / T) [N, V]."""
        if temperature not in self._log_p:
            warm_NV = self.logits_NV if temperature == 1.0 else self.logits_NV / temperature
            self._log_p[temperature] = log_softmax(warm_NV, self._part)
            if self.is_private:
                self._logits_NV = None
        return self._log_p[temperature]

    def p(self, temperature: float = 1.0) -> Tensor:
        """softmax(logits / T) [N, V]."""
        if temperature not in self._p:
            log_p_NV = self.log_p(temperature)
            self._p[temperature] = log_p_NV.exp_() if self.is_private else log_p_NV.exp()
        return self._p[temperature]


def total(values_NV: Tensor, part: VocabSlice | None) -> Tensor:
    """Sum over the whole vocabulary [N]."""
    sum_N = values_NV.sum(1)
    return sum_N if part is None else part.sum(sum_N)


def at_labels(values_NV: Tensor, labels_N: Tensor, part: VocabSlice | None) -> Tensor:
    """Each token's value at its label [N]."""
    if part is None:
        return values_NV.gather(1, labels_N[:, None])[:, 0]
    local_N = labels_N - part.begin
    is_mine_N = (local_N >= 0) & (local_N < part.size)
    found_N = values_NV.gather(1, local_N.clamp(0, part.size - 1)[:, None])[:, 0]
    return part.sum(found_N * is_mine_N)


def minus_one_at_labels(
    own: TokenDistribution, labels_N: Tensor, part: VocabSlice | None, scale_N1: Tensor | None = None
) -> Tensor:
    """Probabilities (times `scale_N1`), minus 1 at each token's label."""
    values_NV = own.p()
    if scale_N1 is not None:
        values_NV = values_NV.mul_(scale_N1) if own.is_private else values_NV * scale_N1
    if part is not None:
        labels_N = labels_N - part.begin
    elif not torch.compiler.is_compiling():
        minus_N1 = torch.full_like(values_NV[:, :1], -1.0)
        scatter = values_NV.scatter_add_ if own.is_private else values_NV.scatter_add
        return scatter(1, labels_N[:, None], minus_N1)
    # no scatter: torch 2.13 loses it when it fuses this gradient with another objective's
    is_label_NV = torch.arange(values_NV.shape[1], device=values_NV.device) == labels_N[:, None]
    return values_NV - is_label_NV.to(values_NV.dtype)


CPU_CACHED, GPU_CACHED = 1 << 24, 1 << 28  # most logits of a micro-batch that a teacher caches for students
Kept = TypeVar("Kept", bound="TokenDistribution | Tensor")


class LogitCache:
    """A teacher's token distributions for each chunk of a micro-batch, computed for its own objectives or its
    first student; students that read the same chunks reuse them, up to a size limit.
    """

    def __init__(self) -> None:
        self._chunks: dict[Hashable, TokenDistribution | Tensor] = {}
        self._room = 0

    def find(self, key: Hashable, kind: type[Kept]) -> Kept | None:
        """The distribution kept under `key`, if it is of this type."""
        found = self._chunks.get(key)
        return found if isinstance(found, kind) else None

    def keep(self, key: Hashable, logits_CV: Tensor, distribution: TokenDistribution | Tensor) -> None:
        """Keep a chunk's distribution under `key` if it fits; `logits_CV` gives its size and device."""
        if not self._chunks:
            self._room = CPU_CACHED if logits_CV.device.type == "cpu" else GPU_CACHED
        if logits_CV.numel() <= self._room:
            self._room -= logits_CV.numel()
            self._chunks[key] = distribution
