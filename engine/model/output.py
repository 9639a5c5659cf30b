"""What every model returns: the hidden states before the head, and by what its last layer attended."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor
from torch.utils import _pytree


class Relations(NamedTuple):
    """A layer's queries [B, H, T, E] and keys [B, K, T, E] as its attention takes them: of each token alone,
    the scores are their products.
    """

    query_BHTE: Tensor
    key_BKTE: Tensor

    def detached(self) -> "Relations":
        return Relations(self.query_BHTE.detach(), self.key_BKTE.detach())


@dataclass(frozen=True)
class Output:
    """`hidden` [B, T, D] after the final norm; `relations` of the last layer and the `mask` [B, 1, T, S] of
    its attention (bool, or numbers to add) for those who learn by it (None = the model has none to give).
    """

    hidden: Tensor
    relations: Relations | None = None
    mask: Tensor | None = None


# FSDP hangs its backward hooks on the tensors in an output's tree; a dataclass is one leaf until registered
_pytree.register_dataclass(Output)
