"""The head and any mix of token objectives, a chunk of tokens at a time: the logits of a whole batch never exist.

B rows, T tokens, N scored tokens, C tokens of a chunk, D hidden, V vocabulary
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.model.precision import compute_dtype
from engine.objective.load import terms_of
from engine.spec.base import Spec
from engine.spec.error import ConfigError
from engine.spec.objective.lm import LM

UNSCORED = -100
CPU_LOGITS = 1 << 21  # fp32 logits of a chunk that still fit in a core's share of the cache
GPU_LOGITS = 1 << 27

Mix = dict[str, tuple[Spec, float]]


@dataclass(frozen=True)
class TeacherSide:
    """The teacher's hidden states [B, T, D'] for the same tokens, and its head [V, D']; no gradient flows there."""

    hidden_BTD: Tensor
    head_weight_VD: Tensor


def objective_sums(
    hidden_BTD: Tensor,
    head_weight_VD: Tensor,
    labels_BT: Tensor,
    mix: Mix,
    teacher: TeacherSide | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over the scored tokens (label not -100) of sum_k share_k objective_k, and each objective's own sum, in nats.

    The total is differentiable, once, with respect to hidden states and head. The sums are detached; "lm", the cross-entropy, is always among
    them. The mix maps a name to (spec, share). Products are computed in autocast's type, everything after the logits in fp32 (fp64 for fp64).
    `chunk` tokens are computed at once; None = as many as suit the device. A KL is computed only where labels are scored.
    """
    _check(hidden_BTD, head_weight_VD, labels_BT, mix, teacher)
    rows_N = (labels_BT.flatten() != UNSCORED).nonzero()[:, 0]
    work = _Work(
        rows_N=rows_N,
        labels_N=labels_BT.flatten()[rows_N],
        mix=mix,
        teacher=teacher,
        chunk=chunk or _chunk_for(head_weight_VD),
        compute=compute_dtype(head_weight_VD),
        backward=torch.is_grad_enabled(),
    )
    total, *sums = _ChunkedObjective.apply(hidden_BTD.flatten(0, 1), head_weight_VD, work)
    return total, dict(zip(work.names, sums, strict=True))


def _check(hidden_BTD: Tensor, head_weight_VD: Tensor, labels_BT: Tensor, mix: Mix, teacher: TeacherSide | None) -> None:
    if hidden_BTD.shape[:2] != labels_BT.shape:
        raise ConfigError("objective", f"labels {tuple(labels_BT.shape)} do not fit hidden states {tuple(hidden_BTD.shape)}")
    if not mix:
        raise ConfigError("objective", "is empty", "objective=lm is next-token prediction")
    if teacher is not None and teacher.head_weight_VD.shape[0] != head_weight_VD.shape[0]:
        sizes = f"{teacher.head_weight_VD.shape[0]} tokens, the student's {head_weight_VD.shape[0]}"
        raise ConfigError("objective", f"the teacher's vocabulary has {sizes}", "give both the same tokenizer")


def _chunk_for(head_weight_VD: Tensor) -> int:
    room = CPU_LOGITS if head_weight_VD.device.type == "cpu" else GPU_LOGITS
    return max(64, room // head_weight_VD.shape[0])


@dataclass(frozen=True)
class _Work:
    """What is to be computed, besides the two tensors that gradients flow to."""

    rows_N: Tensor
    labels_N: Tensor
    mix: Mix
    teacher: TeacherSide | None
    chunk: int
    compute: torch.dtype
    backward: bool

    @property
    def names(self) -> list[str]:
        return [*self.mix, *([] if "lm" in self.mix else ["lm"])]

    def terms(self) -> list[tuple[Spec, float]]:
        """Spec and share of every name; the cross-entropy that is only logged has share 0."""
        return [self.mix.get(name, (LM(), 0.0)) for name in self.names]


class _ChunkedObjective(torch.autograd.Function):
    """Computes the gradients with the sums, chunk by chunk, for an upstream gradient of 1; backward only scales them."""

    @staticmethod
    def forward(ctx: Any, hidden_MD: Tensor, head_weight_VD: Tensor, work: _Work) -> tuple[Tensor, ...]:
        wants_hidden, wants_head = (work.backward and wants for wants in ctx.needs_input_grad[:2])
        with torch.autocast(hidden_MD.device.type, enabled=False):
            sums, hidden_grad, head_grad = _all_chunks(hidden_MD, head_weight_VD, work, wants_hidden, wants_head)
        ctx.gradients = (hidden_grad, head_grad)
        shares = torch.tensor([share for _, share in work.terms()], dtype=sums.dtype, device=sums.device)
        total = (sums * shares).sum()
        each = sums.unbind()
        ctx.mark_non_differentiable(*each)
        return total, *each

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        if ctx.gradients is None:
            raise RuntimeError("objective_sums: backward ran twice; its gradients are scaled in place, call objective_sums again")
        hidden_grad, head_grad = (g if g is None else g.mul_(upstream[0].to(g.dtype)) for g in ctx.gradients)
        ctx.gradients = None
        return hidden_grad, head_grad, None


def _all_chunks(
    hidden_MD: Tensor, head_weight_VD: Tensor, work: _Work, wants_hidden: bool, wants_head: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Sums [K] over all scored tokens, and the gradients of their shared total where they are wanted."""
    head_VD = head_weight_VD.detach().to(work.compute)
    teacher_VD = None if work.teacher is None else work.teacher.head_weight_VD.detach().to(work.compute)
    hidden_grad = torch.zeros_like(hidden_MD) if wants_hidden else None
    head_grad = torch.zeros_like(head_weight_VD) if wants_head else None
    sums = torch.zeros(len(work.names), dtype=_exact(work.compute), device=hidden_MD.device)
    for rows_C, labels_C in zip(work.rows_N.split(work.chunk), work.labels_N.split(work.chunk), strict=True):
        hidden_CD = hidden_MD.detach().index_select(0, rows_C).to(work.compute)
        logits_CV = (hidden_CD @ head_VD.t()).to(_exact(work.compute))
        teacher_CV = None
        if work.teacher is not None and teacher_VD is not None:
            seen_CD = work.teacher.hidden_BTD.detach().flatten(0, 1).index_select(0, rows_C).to(work.compute)
            teacher_CV = (seen_CD @ teacher_VD.t()).to(_exact(work.compute))
        losses, gradient_CV = _chunk_terms(work, logits_CV, labels_C, teacher_CV, wants_hidden or wants_head)
        sums += torch.stack([loss_C.sum() for loss_C in losses])
        if gradient_CV is None:
            continue
        gradient_CV = gradient_CV.to(work.compute)
        if hidden_grad is not None:
            hidden_grad.index_copy_(0, rows_C, (gradient_CV @ head_VD).to(hidden_grad.dtype))
        if head_grad is not None:
            head_grad += gradient_CV.t() @ hidden_CD
    return sums, hidden_grad, head_grad


def _exact(compute: torch.dtype) -> torch.dtype:
    return torch.float64 if compute == torch.float64 else torch.float32


def _chunk_terms(
    work: _Work, logits_CV: Tensor, labels_C: Tensor, teacher_CV: Tensor | None, wants_gradient: bool
) -> tuple[list[Tensor], Tensor | None]:
    """Each objective's loss [C], and the gradient of their shared sum with respect to the logits."""
    losses: list[Tensor] = []
    total_CV: Tensor | None = None
    for spec, share in work.terms():
        terms = terms_of(spec.kind)  # type: ignore[attr-defined]
        if not (wants_gradient and share):
            losses.append(terms.token_loss(spec, logits_CV, labels_C, teacher_CV))
            continue
        loss_C, gradient_CV = getattr(terms, "token_gradient", _Autograd(terms))(spec, logits_CV, labels_C, teacher_CV)
        losses.append(loss_C)
        gradient_CV = gradient_CV if share == 1.0 else gradient_CV.mul_(share)
        total_CV = gradient_CV if total_CV is None else total_CV.add_(gradient_CV)
    return losses, total_CV


@dataclass(frozen=True)
class _Autograd:
    """Loss and gradient of an objective that has no closed form."""

    terms: Any

    def __call__(
        self, spec: Spec, logits_CV: Tensor, labels_C: Tensor, teacher_CV: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf_CV = logits_CV.detach().requires_grad_()
            loss_C = self.terms.token_loss(spec, leaf_CV, labels_C, teacher_CV)
            (gradient_CV,) = torch.autograd.grad(loss_C.sum(), leaf_CV)
        return loss_C.detach(), gradient_CV
