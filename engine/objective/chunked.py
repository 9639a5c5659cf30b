"""Chunked loss: head and token objectives, a chunk of tokens at a time; the logits of a whole batch never
exist (as in the fused linear cross-entropy of 2410.10989).

B rows, T tokens, M = B T, N scored tokens, C tokens of a chunk, K names of objectives, D hidden, V vocabulary
(of this rank's slice, if the vocabulary is split over ranks)
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.model.contract import Relations, compute_dtype
from atelier.engine.model.products import step, with_padding
from atelier.engine.objective.token_terms import (
    TokenTerm,
    allow_any_length,
    chunk_terms,
    compiled_terms,
    terms_of,
)
from atelier.engine.objective.top import TopSide
from atelier.engine.objective.vocab_slice import (
    LogitCache,
    TokenDistribution,
    VocabSlice,
    own_ids,
    ranks_of,
    without_padding,
)

MIN_CHUNK = 256  # with fewer tokens, adding to the head's gradient costs more than the chunk
CPU_LOGITS = 1 << 21  # logits per chunk: 8 MB in fp32, measured fastest for a vocabulary of 4096
GPU_LOGITS = 1 << 26
CPU_ROWS = 4096  # rows of a head's gradient added at once

Mix = Mapping[str, tuple[ObjectiveSpec, float]]


@dataclass(frozen=True)
class TeacherSide:
    """The teacher's hidden states [B, T, D'] of the same tokens, its head [V, D'], and its last layer's
    queries and keys; without gradient. `logit_cache` has token distributions that are already computed.
    """

    hidden_BTD: Tensor
    head_weight_VD: Tensor
    relations: Relations | None = None
    logit_cache: "LogitCache | None" = None


Side = TeacherSide | TopSide  # from a teacher here or at another site


@dataclass(frozen=True)
class _Work:
    """Inputs of the computation besides the two tensors that receive gradients."""

    labels_M: Tensor
    terms: tuple[TokenTerm, ...]
    shares_K: Tensor  # of trained objectives; names after them are only logged
    masks_K: tuple[Tensor | None, ...]  # [M] weights: tokens that a name reads; None = all
    teachers: tuple[Side, ...]
    logit_cache: LogitCache | None
    part: VocabSlice | None
    ids: int | None  # columns that are tokens; None if no rank has padding
    chunk: int
    compute: torch.dtype
    compiled: bool
    is_training: bool
    is_split: bool


def objective_sums(
    hidden_BTD: Tensor,
    head_weight_VD: Tensor,
    labels_BT: Tensor,
    mix: Mix,
    teacher: Side | None = None,
    chunk: int | None = None,
    *,
    compiled: bool = False,
    part: VocabSlice | None = None,
    is_split: bool = False,
    rows: Mapping[str, Tensor] | None = None,
    logit_cache: LogitCache | None = None,
    text: str = "lm",
    others: Mapping[str, Side] = {},
    ids: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over scored tokens (label not -100) of sum_k share_k objective_k, and each objective's own sum, in
    nats.

    The mix maps a name to (spec, share); an empty mix has total 0. The total is differentiable once, with
    respect to hidden states and head. The sums are detached and always include the cross-entropy of all
    scored tokens, as `text`. Products are computed in autocast's type, everything after the logits in fp32
    (fp64 for fp64). `others`: teachers of objectives with another one than `teacher`, by objective. Unscored
    tokens cost nothing. `chunk` tokens are computed at once; None = as many as suit device and vocabulary.
    `compiled` fuses the code after the logits (torch.compile).

    `rows` [B]: by objective, the rows that it reads; objectives without an entry read all. Token
    distributions are stored in `logit_cache`.

    With a vocabulary slice `part` both heads are slices: sums and the head's gradient are complete, the
    gradient of hidden states is this slice's contribution to a sum over ranks (2104.04473, section 3.2).
    `is_split`: the backward pass runs twice, for hidden states and for the head (zero-bubble).

    `ids`: number of tokens in the vocabulary if padding rows follow; padding has no mass in comparisons with
    a teacher.

    Raises ConfigError if labels or vocabularies do not fit.
    """
    names = {name: spec for name, (spec, _) in mix.items()} | ({} if text in mix else {text: LM()})
    sides, asked = _teachers(names, teacher, others)
    _check(hidden_BTD, head_weight_VD, labels_BT, sides, len(head_weight_VD) if ids is None else ids)
    compute = compute_dtype(head_weight_VD)
    masks = [None if rows is None else rows.get(name) for name in names]
    shares = [share for _, share in mix.values()]
    work = _Work(
        labels_M=labels_BT.flatten(),
        terms=terms_of(list(names.values()), asked),
        shares_K=torch.tensor(shares, dtype=_exact(compute), device=hidden_BTD.device),
        masks_K=tuple(
            None if mask is None else mask.to(_exact(compute)).repeat_interleave(labels_BT.shape[1])
            for mask in masks
        ),
        teachers=sides,
        logit_cache=logit_cache,
        part=part,
        ids=own_ids(ids, part) if ids is not None and ids < _rows(head_weight_VD, part) else None,
        chunk=chunk or _chunk_for(head_weight_VD),
        compute=compute,
        compiled=compiled and part is None,
        is_training=torch.is_grad_enabled(),
        is_split=is_split,
    )
    total, sums_K = _ChunkedObjective.apply(hidden_BTD.flatten(0, 1), head_weight_VD, work)
    return total, dict(zip(names, sums_K.unbind(), strict=True))


def _rows(head_weight_VD: Tensor, part: VocabSlice | None) -> int:
    """The number of rows of the whole head, of which this rank has a slice."""
    return len(head_weight_VD) * (1 if part is None else ranks_of(part.group))


def _teachers(
    names: Mapping[str, ObjectiveSpec], teacher: Side | None, others: Mapping[str, Side]
) -> tuple[tuple[Side, ...], list[int]]:
    """The distinct teachers of these objectives, and each objective's index among them (-1 = none)."""
    sides: list[Side] = []
    asked = []
    for name, spec in names.items():
        side = others.get(name, teacher) if type(spec).needs_teacher else None
        if side is not None and not any(side is known for known in sides):
            sides.append(side)
        asked.append(next((n for n, known in enumerate(sides) if known is side), -1))
    return tuple(sides), asked


def _check(
    hidden_BTD: Tensor, head_weight_VD: Tensor, labels_BT: Tensor, teachers: Iterable[Side], ids: int
) -> None:
    if hidden_BTD.shape[:2] != labels_BT.shape:
        sizes = f"labels {tuple(labels_BT.shape)} do not fit hidden states {tuple(hidden_BTD.shape)}"
        raise ConfigError("objective", sizes, "give a label for every token; -100 = not scored")
    for teacher in teachers:
        vocab = teacher.vocab if isinstance(teacher, TopSide) else teacher.head_weight_VD.shape[0]
        if vocab == (ids if isinstance(teacher, TopSide) else head_weight_VD.shape[0]):
            continue
        sizes = f"{vocab} tokens, the student's {head_weight_VD.shape[0]}"
        raise ConfigError(
            "objective", f"the teacher's vocabulary has {sizes}", "give both the same tokenizer"
        )


def _chunk_for(head_weight_VD: Tensor) -> int:
    room = CPU_LOGITS if head_weight_VD.device.type == "cpu" else GPU_LOGITS
    return max(MIN_CHUNK, room // head_weight_VD.shape[0])


def _exact(compute: torch.dtype) -> torch.dtype:
    return torch.float64 if compute == torch.float64 else torch.float32


class _Gradients(FunctionCtx):
    is_split: bool
    gradients: list[Tensor | None] | None  # for hidden states and head
    needs_input_grad: tuple[bool, ...]


class _ChunkedObjective(torch.autograd.Function):
    """Computes gradients together with the sums, chunk by chunk, for an upstream gradient of 1; backward only
    scales them.
    """

    @staticmethod
    def forward(
        ctx: _Gradients, hidden_MD: Tensor, head_weight_VD: Tensor, work: _Work
    ) -> tuple[Tensor, Tensor]:
        wants_hidden, wants_head = (work.is_training and wants for wants in ctx.needs_input_grad[:2])
        ctx.is_split = work.is_split
        with torch.autocast(hidden_MD.device.type, enabled=False):
            sums_K, *ctx.gradients = _all_chunks(hidden_MD, head_weight_VD, work, wants_hidden, wants_head)
        ctx.mark_non_differentiable(sums_K)
        return (sums_K[: len(work.shares_K)] * work.shares_K).sum(), sums_K

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: _Gradients, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("objective_sums: an earlier backward used its gradients; call it again")
        if ctx.is_split:
            return *(None if g is None else g * upstream.to(g.dtype) for g in ctx.gradients), None
        hidden_grad, head_grad = (None if g is None else g.mul_(upstream.to(g.dtype)) for g in ctx.gradients)
        ctx.gradients = None
        return hidden_grad, head_grad, None


def _all_chunks(
    hidden_MD: Tensor, head_weight_VD: Tensor, work: _Work, wants_hidden: bool, wants_head: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sums [K] over all scored tokens, and the gradients of the weighted total if needed."""
    head_VD = head_weight_VD.detach().to(work.compute)
    hidden_grad = torch.zeros_like(hidden_MD) if wants_hidden else None
    # in 16 bits, 64 sums one after another would lose a hundredth of the gradient
    exact = torch.promote_types(head_weight_VD.dtype, torch.float32)
    head_grad = torch.zeros_like(head_weight_VD, dtype=exact) if wants_head else None
    sums_K = work.shares_K.new_zeros(len(work.masks_K))
    weighted = compiled_terms() if work.compiled else chunk_terms
    room, is_kept = _Room(), work.logit_cache is not None
    for number, rows_C in enumerate(_pieces(work)):
        hidden_CD = with_padding(hidden_MD.detach().index_select(0, rows_C).to(work.compute))
        logits_CV = hidden_CD @ head_VD.t() if is_kept else room.product("logits", hidden_CD, head_VD.t())
        logits_CV = logits_CV[: len(rows_C)]
        labels_C = work.labels_M.index_select(0, rows_C)
        masks = tuple(None if mask is None else mask.index_select(0, rows_C) for mask in work.masks_K)
        wants = wants_hidden or wants_head
        own = _distribution(logits_CV, work)
        if work.logit_cache is not None:
            work.logit_cache.keep(_key(work, number), logits_CV, own)
        elif isinstance(own, TokenDistribution):
            own.is_private = not any(isinstance(side, TopSide) for side in work.teachers)
        told = tuple(_teacher_output(side, work, rows_C, number, own) for side in work.teachers)
        if work.compiled:
            allow_any_length(logits_CV, *told, labels_C)
        chunk_sums_K, gradient_CV = weighted(
            work.terms, work.shares_K, masks, logits_CV, own, labels_C, told, wants, work.part,
            takes_logits=work.compiled and not is_kept, ids=work.ids,
        )  # fmt: skip
        sums_K += chunk_sums_K
        if gradient_CV is None:
            continue
        gradient_CV = with_padding(gradient_CV)
        if hidden_grad is not None:
            found_CD = (gradient_CV @ head_VD)[: len(rows_C)]
            hidden_grad.index_copy_(0, rows_C, found_CD.to(hidden_grad.dtype))
        if head_grad is not None:
            _add_product(head_grad, gradient_CV, hidden_CD, room)
    return sums_K, hidden_grad, None if head_grad is None else head_grad.to(head_weight_VD.dtype)


class _Room:
    """Reused buffers for each chunk's products, by name, sized by the first and largest chunk. Repeated
    allocation would fragment memory.
    """

    def __init__(self) -> None:
        self._named: dict[str, Tensor] = {}

    def product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """left @ right, in the buffer of this name."""
        if name not in self._named:
            self._named[name] = left.new_empty(left.shape[0], right.shape[1])
        return torch.mm(left, right, out=self._named[name][: left.shape[0]])


def _add_product(head_grad: Tensor, gradient_CV: Tensor, hidden_CD: Tensor, room: _Room) -> None:
    """Add gradient^T hidden in place. A CPU converts the product to the sum's type first, so only some
    vocabulary rows are added at a time.
    """
    rows = CPU_ROWS if head_grad.device.type == "cpu" else len(head_grad)
    for total, part in zip(head_grad.split(rows), gradient_CV.split(rows, dim=1), strict=True):
        total += room.product("head", part.t(), hidden_CD)


def _distribution(logits_CV: Tensor, work: _Work) -> TokenDistribution | Tensor:
    """The token distribution of logits; for compiled code the logits, which it converts itself."""
    return logits_CV if work.compiled else TokenDistribution(logits_CV.to(work.shares_K.dtype), work.part)


def _key(work: _Work, number: int) -> Hashable:
    return work.labels_M.data_ptr(), work.chunk, number


def _teacher_output(
    teacher: Side, work: _Work, rows_C: Tensor, number: int, own: TokenDistribution | Tensor
) -> TokenDistribution | Tensor:
    """A teacher's token distribution for a chunk, from the logit cache if it is there. `own`: the
    student's.
    """
    if isinstance(teacher, TopSide):
        is_here = isinstance(own, TokenDistribution)
        mine = own if is_here else TokenDistribution(own.to(work.shares_K.dtype))
        if work.ids is not None:
            mine = TokenDistribution(without_padding(mine.logits_NV, work.ids, mine.logits_NV.shape[1]))
        found = teacher.distribution(mine, rows_C)
        return found if is_here else found.logits_NV
    logit_cache = teacher.logit_cache
    known = (
        logit_cache.find(_key(work, number), Tensor if work.compiled else TokenDistribution)
        if logit_cache is not None
        else None
    )
    if known is not None:
        return known
    hidden_CD = teacher.hidden_BTD.detach().flatten(0, 1).index_select(0, rows_C).to(work.compute)
    logits_CV = with_padding(hidden_CD) @ teacher.head_weight_VD.detach().to(work.compute).t()
    logits_CV = logits_CV[: len(rows_C)]
    told = _distribution(logits_CV, work)
    if logit_cache is not None:
        logit_cache.keep(_key(work, number), logits_CV, told)
    return told


def _pieces(work: _Work) -> tuple[Tensor, ...]:
    """The scored tokens' row numbers in the fewest chunks of at most `chunk`, of nearly equal length; only
    the last needs padding.
    """
    rows_N = (work.labels_M != NOT_SCORED).nonzero()[:, 0]
    if not len(rows_N):
        return ()
    number = -(-len(rows_N) // work.chunk)
    length = -(-len(rows_N) // number)
    length += -length % step(length)
    return rows_N.split(min(work.chunk, length))
