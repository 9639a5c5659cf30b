"""Experts' MLPs: forward and backward pass over tokens sorted by expert, with weights in memory or elsewhere.

X experts, P tokens sorted by expert, Q tokens of one expert, D hidden, F inner width
"""

import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from atelier.engine.config.blocks import Activation
from atelier.engine.config.parallel import ExpertProducts
from atelier.engine.model.activation import activated, activated_backward
from atelier.engine.model.products import product, with_padding

FEW_ROWS = 64  # mean rows per expert up to which one grouped product is faster (measured)
GROUPED = (9, 0)  # compute capability of the first GPUs with a grouped product
ALIGNED = 16  # bytes of which grouped_mm's rows must be a multiple
VECTORS = 64  # numbers per vector of an elementwise operation


def mlp(x: Tensor, weights: tuple[Tensor, ...], activation: Activation) -> Tensor:
    """down(f(gate x) * up x), or without a gate down(f(up x))."""
    *into, down = weights
    return F.linear(activated(activation, [F.linear(x, weight) for weight in into]), down)


class ExpertSource(Protocol):
    """Provides experts' weights and takes their gradients. `inner`: F, once for the gate and once for up."""

    @property
    def inner(self) -> Sequence[int]: ...

    def weights(self, expert: int) -> AbstractContextManager[Sequence[Tensor]]:
        """[gate,] up and down, valid while in use."""
        ...

    def gradients(self, expert: int) -> AbstractContextManager[Sequence[Tensor]]:
        """Buffers for the gradients of a pass, of the same types."""
        ...


class ExpertPass:
    """One pass of tokens through experts. It repeats autograd's operations for `mlp`, with the same bits, but
    writes each gradient into its place: stacking those of all experts would copy them. Kept tensors have one
    size for every routing, because varying sizes would fragment the heap.
    """

    def __init__(self, counts_X: Sequence[int], activation: Activation) -> None:
        self.counts_X = counts_X
        self.activation: Activation = activation

    @property
    def _met(self) -> list[int]:
        """The experts that have tokens."""
        return [expert for expert, count in enumerate(self.counts_X) if count]

    def _parts(self, rows: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Each expert's part of these rows."""
        counts = list(self.counts_X)
        return list(zip(*(each.split(counts) for each in rows), strict=True))

    def forward(self, x_PD: Tensor, source: ExpertSource) -> list[Tensor]:
        """The results [P, D], and the activation's inputs: [gate] and up [P, F]."""
        found = [torch.empty_like(x_PD), *(x_PD.new_empty(len(x_PD), width) for width in source.inner)]
        parts = self._parts([x_PD, *found])
        for expert in self._met:
            x_QD, y_QD, *inner_QF = parts[expert]
            with source.weights(expert) as weights:
                _through(x_QD, weights, self.activation, inner_QF, y_QD)
        return found

    def backward(
        self,
        gradient_PD: Tensor,
        x_PD: Tensor,
        inner_PF: Sequence[Tensor],
        source: ExpertSource,
        *,
        for_tokens: bool = True,
        for_weights: bool = True,
    ) -> Tensor:
        """The tokens' gradient; weights' gradients go to the source, the last expert's first. Computes only
        the requested ones.
        """
        result = torch.empty_like(x_PD)
        parts = self._parts([result, gradient_PD, x_PD, *inner_PF])
        for expert in reversed(self._met):
            result_QD, *others = parts[expert]
            gradient_QD, x_QD, *inner_QF = map(with_padding, others)
            with source.weights(expert) as weights:
                *into, down = _as(x_PD.dtype, weights)
                change_QF = torch.mm(gradient_QD, down)
                changes = activated_backward(self.activation, change_QF, inner_QF)
                if for_weights:
                    with source.gradients(expert) as found:
                        product(gradient_QD.T, activated(self.activation, inner_QF), found[-1])
                        for change, gradient in zip(changes, found[:-1], strict=True):
                            product(change.T, x_QD, gradient)
                for number, (change, weight) in enumerate(zip(changes, into, strict=True)):
                    if not for_tokens:
                        break
                    if number:
                        result_QD += torch.mm(change, weight)[: len(result_QD)]
                    else:
                        product(change, weight, result_QD)
        return result


def one_expert(x_QD: Tensor, weights: Sequence[Tensor], activation: Activation) -> Tensor:
    """`mlp` with the bits of `ExpertPass.forward`."""
    inner_QF = [x_QD.new_empty(len(x_QD), len(weight)) for weight in weights[:-1]]
    y_QD = torch.empty_like(x_QD)
    _through(x_QD, weights, activation, inner_QF, y_QD)
    return y_QD


def _through(
    x_QD: Tensor,
    weights: Sequence[Tensor],
    activation: Activation,
    inner_QF: Sequence[Tensor],
    y_QD: Tensor,
) -> None:
    """Write an expert's results and the activation's inputs."""
    *into, down = _as(x_QD.dtype, weights)
    x_QD = with_padding(x_QD)
    for weight, out in zip(into, inner_QF, strict=True):
        product(x_QD, weight.T, out)
    product(with_padding(activated(activation, inner_QF)), down.T, y_QD)


def _as(dtype: torch.dtype, weights: Sequence[Tensor]) -> Sequence[Tensor]:
    return weights if weights[0].dtype == dtype else [weight.to(dtype) for weight in weights]


def dtype_of(x_PD: Tensor) -> torch.dtype:
    """The type of products with these tokens."""
    kind = x_PD.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_PD.dtype


class _InMemory:
    def __init__(self, weights_XFD: Sequence[Tensor], gradients_XFD: Sequence[Tensor] = ()) -> None:
        self.inner = [weights_XFD[-1].shape[2]] * (len(weights_XFD) - 1)
        self._weights = list(zip(*(weight.unbind(0) for weight in weights_XFD), strict=True))
        self._gradients = list(zip(*(gradient.unbind(0) for gradient in gradients_XFD), strict=True))

    def weights(self, expert: int) -> AbstractContextManager[Sequence[Tensor]]:
        return nullcontext(self._weights[expert])

    def gradients(self, expert: int) -> AbstractContextManager[Sequence[Tensor]]:
        return nullcontext(self._gradients[expert])


def experts_mlp(
    x_PD: Tensor,
    counts_X: Sequence[int] | Tensor,
    weights_XFD: Sequence[Tensor],
    activation: Activation,
    products: ExpertProducts = "auto",
) -> Tensor:
    """`mlp` of each expert's tokens [P, D]; an expert without tokens has gradients of 0. Counts in a tensor
    stay on the device, and rows after those of all experts give 0.
    """
    x_PD = x_PD.to(dtype_of(x_PD))
    if isinstance(counts_X, Tensor):
        return _ExpertsMLP.apply(x_PD, [], counts_X, True, activation, *weights_XFD)
    is_one = is_grouped(products, x_PD, weights_XFD)
    return _ExpertsMLP.apply(x_PD, counts_X, None, is_one, activation, *weights_XFD)


def may_stay(products: ExpertProducts, x_ND: Tensor, weights_XFD: Sequence[Tensor]) -> bool:
    """Whether tokens per expert need not be known on the host: on GPUs with a grouped product of 16 bits."""
    is_new = x_ND.is_cuda and torch.cuda.get_device_capability(x_ND.device) >= GROUPED
    is_whole = all(width % ALIGNED == 0 for width in weights_XFD[0].shape[1:])
    return products != "loop" and is_new and is_whole and dtype_of(x_ND).itemsize == 2


def is_grouped(products: ExpertProducts, x_PD: Tensor, weights_XFD: Sequence[Tensor]) -> bool:
    """Whether experts' products are one grouped operation instead of one each. `auto`: on CPUs in float32 if
    experts have few rows and bits are equal, which requires one thread and activations whose vectors do not
    span experts. Never if the operation does not support it: widths that are not a multiple of 16 bytes,
    float64.
    """
    num_experts, *widths = weights_XFD[0].shape
    is_whole = all(width * x_PD.element_size() % ALIGNED == 0 for width in widths)
    if products == "loop" or not len(x_PD) or not is_whole or x_PD.dtype == torch.float64:
        return False
    is_plain = x_PD.dtype == weights_XFD[0].dtype == torch.float32 and torch.get_num_threads() == 1
    has_few = widths[0] % VECTORS == 0 and len(x_PD) <= FEW_ROWS * num_experts
    return products == "grouped" or (x_PD.device.type == "cpu" and is_plain and has_few)


class _Grouped:
    """`ExpertPass` with one product for all experts."""

    def __init__(
        self,
        x_PD: Tensor,
        counts_X: Sequence[int] | Tensor,
        weights_XFD: Sequence[Tensor],
        activation: Activation,
    ) -> None:
        self.x_PD = x_PD
        self.activation: Activation = activation
        has_all = not isinstance(counts_X, Tensor)
        load_X = torch.tensor(counts_X, device=x_PD.device) if has_all else counts_X
        self.ends_X = load_X.cumsum(0, dtype=torch.int32)
        self._is_no_one_P1 = None if has_all else _after(self.ends_X, len(x_PD))
        *self.into, self.down = (weight.to(x_PD.dtype) for weight in weights_XFD)

    def _product(self, left: Tensor, right: Tensor) -> Tensor:
        return F.grouped_mm(left, right, offs=self.ends_X)

    def _of_experts(self, rows_PD: Tensor) -> Tensor:
        """The rows, 0 for those of no expert, which a product leaves unwritten."""
        return rows_PD if self._is_no_one_P1 is None else rows_PD.masked_fill_(self._is_no_one_P1, 0)

    def forward(self) -> list[Tensor]:
        inner_PF = [self._product(self.x_PD, weight.mT) for weight in self.into]
        y_PD = self._product(activated(self.activation, inner_PF), self.down.mT)
        return [self._of_experts(y_PD), *inner_PF]

    def backward(
        self, gradient_PD: Tensor, inner_PF: Sequence[Tensor], *, for_tokens: bool, for_weights: bool
    ) -> tuple[Tensor | None, list[Tensor]]:
        """The gradients of tokens and weights, as requested."""
        changes = activated_backward(self.activation, self._product(gradient_PD, self.down), inner_PF)
        found = [self._product(change.T, self.x_PD) for change in changes] if for_weights else []
        if for_weights:
            found.append(self._product(gradient_PD.T, activated(self.activation, inner_PF)))
        if not for_tokens:
            return None, found
        parts = (self._product(*each) for each in zip(changes, self.into, strict=True))
        return self._of_experts(functools.reduce(torch.Tensor.add_, parts)), found


def _after(ends_X: Tensor, number: int) -> Tensor:
    """[P, 1] bool: which of `number` rows follow those of all experts."""
    return (torch.arange(number, device=ends_X.device) >= ends_X[-1])[:, None]


def _forward(
    x_PD: Tensor,
    weights_XFD: list[Tensor],
    counts_X: list[int],
    load_X: Tensor | None,
    grouped: bool,
    activation: Activation,
) -> list[Tensor]:
    if grouped:
        return _Grouped(x_PD, counts_X if load_X is None else load_X, weights_XFD, activation).forward()
    return ExpertPass(counts_X, activation).forward(x_PD, _InMemory(weights_XFD))


def _shapes(
    x_PD: Tensor,
    weights_XFD: list[Tensor],
    _counts_X: list[int],
    _load_X: Tensor | None,
    _grouped: bool,
    _activation: Activation,
) -> list[Tensor]:
    inner = _InMemory(weights_XFD).inner
    return [torch.empty_like(x_PD), *(x_PD.new_empty(len(x_PD), width) for width in inner)]


# one operation, so that selective recomputation keeps its results like those of other products
_LIBRARY = torch.library.Library("atelier", "DEF")
_LIBRARY.define(
    "experts(Tensor x, Tensor[] weights, int[] counts, Tensor? load, bool grouped, str activation)"
    " -> Tensor[]"
)
_LIBRARY.impl("experts", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("experts", _shapes, "Meta")
EXPERTS = torch.ops.atelier.experts.default


class _ExpertsContext(FunctionCtx):
    counts_X: Sequence[int] | Tensor
    grouped: bool
    activation: Activation
    number: int  # number of weights
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]


class _ExpertsMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _ExpertsContext,
        x_PD: Tensor,
        counts_X: Sequence[int],
        load_X: Tensor | None,
        grouped: bool,
        activation: Activation,
        *weights_XFD: Tensor,
    ) -> Tensor:
        ctx.counts_X, ctx.grouped, ctx.number = counts_X, grouped, len(weights_XFD)
        if load_X is not None:
            ctx.counts_X = load_X
        ctx.activation = activation
        y_PD, *inner_PF = EXPERTS(x_PD, weights_XFD, counts_X, load_X, grouped, activation)
        ctx.save_for_backward(x_PD, *weights_XFD, *inner_PF)
        return y_PD

    @staticmethod
    def backward(ctx: _ExpertsContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_PD, *rest = ctx.saved_tensors
        weights_XFD, inner_PF = rest[: ctx.number], rest[ctx.number :]
        for_tokens, _, _, _, _, *for_weights = ctx.needs_input_grad
        gradient_PD = gradients[0].contiguous()
        if ctx.grouped:
            result_PD, made = _Grouped(x_PD, ctx.counts_X, weights_XFD, ctx.activation).backward(
                gradient_PD, inner_PF, for_tokens=for_tokens, for_weights=any(for_weights)
            )
            made = [one.to(weight.dtype) for one, weight in zip(made, weights_XFD, strict=False)]
            _without_tokens(made, ctx.counts_X)
            return result_PD, None, None, None, None, *(made or [None] * ctx.number)
        assert not isinstance(ctx.counts_X, Tensor)  # those are grouped
        found = [torch.empty_like(weight) for weight in weights_XFD] if any(for_weights) else []
        x_PD = ExpertPass(ctx.counts_X, ctx.activation).backward(
            gradient_PD, x_PD, inner_PF, _InMemory(weights_XFD, found),
            for_tokens=for_tokens, for_weights=bool(found),
        )  # fmt: skip
        _without_tokens(found, ctx.counts_X)
        return x_PD if for_tokens else None, None, None, None, None, *(found or [None] * ctx.number)


def _without_tokens(gradients_XFD: Sequence[Tensor], counts_X: Sequence[int] | Tensor) -> None:
    """Zero the gradients of experts without tokens, whose buffers may be unwritten."""
    if isinstance(counts_X, Tensor):
        for gradient in gradients_XFD:
            gradient.masked_fill_((counts_X == 0)[:, None, None], 0)
        return
    for expert, number in enumerate(counts_X):
        for gradient in () if number else gradients_XFD:
            gradient[expert].zero_()
