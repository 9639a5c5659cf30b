"""A mixture of experts in place of an MLP: every token is routed to its top K experts, none is dropped.

N tokens, D hidden, F inner width, X experts, K experts a token
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Experts(nn.Module):
    """X SwiGLU MLPs (2002.05202). forward: tokens [N, D] sorted by expert and the number of each expert's
    tokens -> [N, D].
    """

    def __init__(self, num_experts: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(num_experts, inner, hidden))
        self.up = nn.Parameter(torch.empty(num_experts, inner, hidden))
        self.down = nn.Parameter(torch.empty(num_experts, hidden, inner))

    def forward(self, x_ND: Tensor, counts_X: list[int]) -> Tensor:
        return experts_mlp(x_ND, counts_X, self.gate, self.up, self.down)


def experts_mlp(
    x_ND: Tensor, counts_X: list[int], gate_XFD: Tensor, up_XFD: Tensor, down_XDF: Tensor
) -> Tensor:
    """down(silu(gate x) * up x) of each expert's tokens [N, D]; an expert without tokens has
    gradients of 0.
    """
    results = []
    parts = zip(
        x_ND.split(counts_X), gate_XFD.unbind(0), up_XFD.unbind(0), down_XDF.unbind(0), strict=True
    )  # unbind: indexing each expert would have a full-size backward
    for x, gate, up, down in parts:
        results.append(F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down))
    return torch.cat(results)


class MoE(nn.Module):
    """sum_k p_k expert_k(x): p is the softmax over the K largest of the router's logits (2401.04088)."""

    def __init__(self, num_experts: int, per_token: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.per_token, self.num_experts = per_token, num_experts
        self.router = nn.Linear(hidden, num_experts, bias=False)
        self.experts = Experts(num_experts, hidden, inner)

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, -2)
        logits_NK, chosen_NK = self.router(x_ND).topk(self.per_token, dim=-1)
        share_NK = logits_NK.float().softmax(-1) if x_ND.dtype != torch.float64 else logits_NK.softmax(-1)
        order = chosen_NK.flatten().argsort(stable=True)  # by expert, then by token
        counts_X = chosen_NK.flatten().bincount(minlength=self.num_experts)
        y = self.experts(x_ND[order // self.per_token], counts_X.tolist())
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        y_NKD = y[back].view(*chosen_NK.shape, -1)
        return (y_NKD * share_NK[..., None].to(y.dtype)).sum(1).view_as(x_BTD)
