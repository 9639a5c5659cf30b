"""Weighted losses of token objectives on a chunk of logits, with their gradient; the same code eager and
compiled.

C tokens of a chunk, K names of objectives, V vocabulary (of this rank's slice, if it is split over ranks)
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from atelier.engine.config.base import Spec
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.tested import is_on
from atelier.engine.objective.lm import token_loss, z_weight
from atelier.engine.objective.load import module_of
from atelier.engine.objective.vocab_slice import TokenDistribution, VocabSlice, without_padding

TokenLoss = Callable[[Spec, Tensor, Tensor, Tensor | None], Tensor]
TokenGradient = Callable[
    [Spec, TokenDistribution, Tensor, TokenDistribution | None, VocabSlice | None], tuple[Tensor, Tensor]
]


@dataclass(frozen=True)
class TokenTerm:
    """One loss on a chunk's logits, with and without its gradient. `names`: indices of the objectives that
    use it, each on its own rows; `teacher`: index of its teacher, -1 = none.
    """

    spec: Spec
    loss: TokenLoss
    gradient: TokenGradient
    names: tuple[int, ...]
    teacher: int = -1


def terms_of(specs: Sequence[ObjectiveSpec], teachers: Sequence[int]) -> tuple[TokenTerm, ...]:
    """The losses of these objectives with their teachers' indices; shared cross-entropy only once."""
    found: dict[str | int, tuple[ModuleType, ObjectiveSpec, list[int]]] = {}
    for number, spec in enumerate(specs):
        module = module_of(spec)
        is_plain = module.token_loss is token_loss and not z_weight(spec)
        found.setdefault("cross-entropy" if is_plain else number, (module, spec, []))[2].append(number)
    return tuple(
        TokenTerm(
            spec,
            module.token_loss,
            getattr(module, "token_gradient", functools.partial(derived_gradient, module.token_loss)),
            tuple(numbers),
            teachers[numbers[0]],
        )
        for module, spec, numbers in found.values()
    )


def derived_gradient(
    loss: TokenLoss,
    spec: Spec,
    own: TokenDistribution,
    labels_C: Tensor,
    teacher: TokenDistribution | None,
    part: VocabSlice | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss [C] and gradient [C, V] by autograd, for an objective without closed form; needs the whole
    vocabulary.
    """
    logits_CV, taught_CV = own.logits_NV, None if teacher is None else teacher.log_p()
    if part is not None:
        logits_CV, taught_CV = part.whole(logits_CV), None if taught_CV is None else part.whole(taught_CV)

    def total(leaf_CV: Tensor) -> tuple[Tensor, Tensor]:
        loss_C = loss(spec, leaf_CV, labels_C, taught_CV)
        return loss_C.sum(), loss_C

    gradient_CV, loss_C = torch.func.grad(total, has_aux=True)(logits_CV)
    return loss_C, gradient_CV if part is None else part.mine(gradient_CV)


def chunk_terms(
    terms: tuple[TokenTerm, ...],
    shares_K: Tensor,
    masks_K: tuple[Tensor | None, ...],
    logits_CV: Tensor,
    own: TokenDistribution | Tensor,
    labels_C: Tensor,
    teachers: Sequence[TokenDistribution | Tensor | None],
    wants_gradient: bool,
    part: VocabSlice | None = None,
    *,
    takes_logits: bool = False,
    ids: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Each objective's sum [K], and the weighted total's gradient with respect to the logits, in the logits'
    type; in their memory if `takes_logits`. A mask is [C]. Columns from `ids` on are padding, which terms
    with a teacher exclude; None: no rank has padding.
    """
    if isinstance(own, Tensor):
        own = TokenDistribution(own.to(shares_K.dtype), part)
    own.is_private = own.is_private and len(terms) == 1
    told = [
        TokenDistribution(each.to(shares_K.dtype), part) if isinstance(each, Tensor) else each
        for each in (*teachers, None)
    ]
    compared, columns = own, logits_CV.shape[1]
    if ids is not None and any(told):
        compared = TokenDistribution(without_padding(own.logits_NV, ids, columns), part)
        told = [
            None if each is None else TokenDistribution(without_padding(each.logits_NV, ids, columns), part)
            for each in told
        ]
    sums: dict[int, Tensor] = {}
    total_CV: Tensor | None = None
    for term in terms:
        trained = [k for k in term.names if k < len(shares_K)] if wants_gradient else []
        gradient_CV, teacher = None, told[term.teacher]
        mine = own if teacher is None else compared
        if part is None and not trained:
            taught_CV = None if teacher is None else teacher.log_p()
            loss_C = term.loss(term.spec, mine.logits_NV, labels_C, taught_CV)
        else:
            loss_C, gradient_CV = term.gradient(term.spec, mine, labels_C, teacher, part)
        for k in term.names:
            mask_C = masks_K[k]
            sums[k] = loss_C.sum() if mask_C is None else (loss_C * mask_C).sum()
        if not trained or gradient_CV is None:
            continue
        gradient_CV.mul_(_weight([(shares_K[k], masks_K[k]) for k in trained]))
        total_CV = gradient_CV if total_CV is None else total_CV.add_(gradient_CV)
    ordered = torch.stack([sums[k] for k in range(len(masks_K))])
    if total_CV is None:
        return ordered, None
    return ordered, logits_CV.copy_(total_CV) if takes_logits else total_CV.to(logits_CV.dtype)


def _weight(shares: list[tuple[Tensor, Tensor | None]]) -> Tensor:
    """The weight of a loss in the total: a number, or [C, 1]."""
    parts = [share if mask_C is None else share * mask_C[:, None] for share, mask_C in shares]
    return functools.reduce(torch.add, parts)


@functools.cache
def compiled_terms() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(chunk_terms)


def allow_any_length(*tensors: TokenDistribution | Tensor | None) -> None:
    """Compile once for chunks of every length: the number of scored tokens differs between batches."""
    for tensor in tensors if is_on("any length") else ():
        if isinstance(tensor, Tensor):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
