"""Activations of MLPs with their gradients. Experts are computed outside of autograd, with the bits that
autograd would give.

Q tokens, F inner width
"""

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from atelier.engine.config.blocks import Activation

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),  # 2109.08668
}


def _relu2_backward(gradient: Tensor, x: Tensor) -> Tensor:
    positive = F.relu(x)
    return torch.ops.aten.threshold_backward(gradient * (2 * positive), positive, 0)


BACKWARD: dict[Activation, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": torch.ops.aten.silu_backward,
    "gelu": torch.ops.aten.gelu_backward,
    "gelu_tanh": functools.partial(torch.ops.aten.gelu_backward, approximate="tanh"),
    "relu": lambda gradient, x: torch.ops.aten.threshold_backward(gradient, x, 0),
    "relu2": _relu2_backward,
}


def activated(activation: Activation, inner_QF: Sequence[Tensor]) -> Tensor:
    """f(gate) * up, or f(up) without a gate, in their type."""
    found_QF = ACTIVATIONS[activation](inner_QF[0]).to(inner_QF[0].dtype)  # autocast widens powers on GPUs
    return found_QF * inner_QF[1] if len(inner_QF) == 2 else found_QF


def activated_backward(activation: Activation, gradient: Tensor, inner_QF: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of [gate] and up from that of `activated`."""
    backward = BACKWARD[activation]
    if len(inner_QF) == 2:
        gate, up = inner_QF
        return [backward(gradient * up, gate), gradient * activated(activation, inner_QF[:1])]
    return [backward(gradient, inner_QF[0])]
