"""What every model returns: the hidden states before the head, and named extras."""

from dataclasses import dataclass, field

from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True)
class Output:
    """`hidden` [B, T, D] after the final norm (the head is separate); `aux` scalars a model adds to the objective; `taps` inner states."""

    hidden: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)
    taps: dict[str, Tensor] = field(default_factory=dict)


# FSDP finds the tensors of an output by its tree, to hang its backward hooks on; an unregistered dataclass is one opaque leaf
_pytree.register_dataclass(Output)
