"""What every model returns, how its weights may be split over ranks (said by path, read by engine/parallel),
and in which type a matrix product is computed.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
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

# "vocabulary"  a row for each token: rows are split
# "out"         a matrix whose outputs are split
# "in"          a matrix whose inputs are split, so that its results are parts of a sum
# "tokens"      works on each token alone: with sequence parallelism it gets a part of them
# "inside"      a module whose matrices are "out" and "in": its input is whole inside
# "mixture"     a module that sends tokens to experts: its input and output are whole
# "whole"       not split
Split = Literal["vocabulary", "out", "in", "tokens", "inside", "mixture", "whole"]


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Autocast's type where it is on for the weight's device, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def rounded(x: Tensor) -> Tensor:
    """`x` in the type of products, once for all that read it: autocast would cast it, keep it and send it for
    each of them.
    """
    return x.to(compute_dtype(x))
