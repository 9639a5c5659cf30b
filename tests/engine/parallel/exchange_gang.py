"""One rank of a gang that sends tokens to experts, flat and in two stages; run by test_expert.py.
Its results go to a file: the layer's outputs and gradients, those of one rank with all experts, and what
went to other nodes.
"""

import torch
from torch import Tensor, nn

from atelier.engine.config.parallel import Parallel
from atelier.engine.model.moe import ExpertWeights, SharedExperts
from atelier.engine.model.placement import local
from atelier.engine.parallel.expert import split_experts
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid
from tests.engine.parallel.gangs import rank

N, D, F, X, K = 24, 6, 16, 12, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = ExpertWeights(X, D, F)
        self.shared = SharedExperts(D, F)
        generator = torch.Generator().manual_seed(7)
        for weight in self.parameters():
            weight.data.copy_(torch.randn(weight.shape, generator=generator))


def tokens_of(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Skewed choices of a rank, some of no expert; rank 0 sends nothing to the last experts."""
    generator = torch.Generator().manual_seed(number)
    x_ND = torch.randn(N, D, generator=generator)
    bias_X = torch.linspace(2, -2, X) - torch.where(torch.arange(X) > 8, 100 * (number == 0), 0)
    chosen_NK = (torch.randn(N, X, generator=generator) + bias_X).topk(K, dim=-1).indices
    chosen_NK[torch.rand(N, K, generator=generator) < 0.1] = -1
    return x_ND.double(), chosen_NK, torch.rand(N, K, generator=generator).double()


def passed(layer: Layer, number: int) -> dict[str, Tensor]:
    x_ND, chosen_NK, share_NK = tokens_of(number)
    x_ND.requires_grad_()
    share_NK.requires_grad_()
    layer.zero_grad()
    y_ND, load_X = layer.experts(x_ND, chosen_NK, share_NK, layer.shared)
    y_ND.pow(3).sum().backward()
    found = {"y": y_ND.detach(), "load": load_X, "x": x_ND.grad, "share": share_NK.grad}
    found |= {
        name: local(weight.grad) for name, weight in layer.named_parameters() if weight.grad is not None
    }
    return {name: value.clone() for name, value in found.items() if value is not None}


def compute(gang: Gang, layout: Parallel, *words: str) -> dict[str, object]:
    grid = Grid(gang, layout.axes)
    layer = Layer().double()
    route = split_experts(layer, grid)
    assert route is not None
    if "flat" in words:
        route.stages = None
    found, alone = passed(layer, grid.data_index), passed(Layer().double(), grid.data_index)
    return {"passed": found, "alone": alone, "stages": route.stages is not None} | vars(route.traffic)


def main(given: list[str]) -> int:
    return rank(given, compute)
