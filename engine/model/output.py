"""What every model returns: the hidden states before the head, and named extras."""

from dataclasses import dataclass, field

from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True)
class Output:
    """`hidden` [B, T, D] after the final norm; `aux`: scalars that join the objective; `taps`: inner states
    by name.
    """

    hidden: Tensor
    aux: dict[str, Tensor] = field(default_factory=dict)
    taps: dict[str, Tensor] = field(default_factory=dict)


# FSDP hangs its backward hooks on the tensors in an output's tree; a dataclass is one leaf until registered
_pytree.register_dataclass(Output)
