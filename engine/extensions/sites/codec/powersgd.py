"""Two thin factors of a matrix: one step of power iteration from a random start (PowerSGD, Vogels et al.,
1905.13727, algorithm 1). The paper starts from the factor of the step before; here the start is drawn for
each round, so that nothing is kept between rounds.

Letters: M rows, N columns, R rank.
"""

import torch
from torch import Tensor


def encode(matrix_MN: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """The left factor, whose columns are orthonormal, and the right one."""
    start_NR = torch.randn(matrix_MN.shape[1], rank, generator=torch.Generator().manual_seed(seed))
    left_MR = torch.linalg.qr(matrix_MN @ start_NR).Q
    return left_MR.contiguous(), (matrix_MN.mT @ left_MR).contiguous()


def decode(left_MR: Tensor, right_NR: Tensor) -> Tensor:
    """The factors' product as a sum of outer products in their order, each operation rounded alone: a matrix
    product's bits depend on the machine.
    """
    total_MN = torch.zeros(len(left_MR), len(right_NR))
    for left_M, right_N in zip(left_MR.unbind(1), right_NR.unbind(1), strict=True):
        product_MN = left_M[:, None] * right_N
        total_MN += product_MN
    return total_MN
