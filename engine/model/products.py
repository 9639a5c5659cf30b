"""Products of matrices whose number of rows differs from one to the next."""

import torch
import torch.nn.functional as F
from torch import Tensor


def with_padding(rows_ND: Tensor) -> Tensor:
    """Rows of 0 below, up to a number that others have too: on CPUs, where a product of low precision is the
    first of its shape, oneDNN builds a kernel, which takes 0.5 to 1.5 ms and keeps 0.3 to 0.6 MB. Above 256
    rows at most 1 in 16 is padding.
    """
    if rows_ND.device.type != "cpu" or rows_ND.dtype not in (torch.bfloat16, torch.float16):
        return rows_ND
    return F.pad(rows_ND, (0, 0, 0, missing)) if (missing := -len(rows_ND) % step(len(rows_ND))) else rows_ND


def step(rows: int) -> int:
    """Of what `with_padding` makes a number of rows a multiple."""
    return 1 << max(4, rows.bit_length() - 5)


def product(left: Tensor, right: Tensor, into: Tensor) -> None:
    """Write left @ right, less the padding of `left`."""
    if into.dtype == left.dtype and len(into) == len(left):
        torch.mm(left, right, out=into)
    else:
        into.copy_(torch.mm(left, right)[: len(into)])
