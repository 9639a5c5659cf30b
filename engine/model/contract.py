"""The interface of models: what they return, how their weights may be split over ranks (declared by path,
applied by engine/parallel), and the type of matrix products.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree


class Relations(NamedTuple):
    """A layer's queries [B, H, T, E] and keys [B, K, T, E] as inputs of its attention: per token, the scores
    are their products.
    """

    query_BHTE: Tensor
    key_BKTE: Tensor

    def detached(self) -> "Relations":
        return Relations(self.query_BHTE.detach(), self.key_BKTE.detach())


@dataclass(frozen=True)
class Output:
    """`hidden` [B, T, D] after the final norm; `relations` of the last layer and its attention `mask` [B, 1,
    T, S] (bool or additive), for attention distillation (None = the model does not offer them).
    """

    hidden: Tensor
    relations: Relations | None = None
    mask: Tensor | None = None


# FSDP attaches its backward hooks to the tensors in an output's tree; a dataclass is a leaf until registered
_pytree.register_dataclass(Output)

# "vocabulary"  a row for each token: rows are split
# "out"         a matrix whose outputs are split
# "in"          a matrix whose inputs are split, so that its results are parts of a sum
# "tokens"      works on each token alone: with sequence parallelism it gets some of them
# "inside"      a module whose matrices are "out" and "in": its input is whole inside
# "mixture"     a module that sends tokens to experts: its input and output are whole
# "whole"       not split
Split = Literal["vocabulary", "out", "in", "tokens", "inside", "mixture", "whole"]


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Autocast's type if it is on for the weight's device, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def rounded(x: Tensor) -> Tensor:
    """`x` in the type of products, cast once for all its readers: autocast would cast, keep and communicate
    it for each of them.
    """
    return x.to(compute_dtype(x))
