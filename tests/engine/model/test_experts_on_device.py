"""Experts whose numbers of tokens only the device knows, as on GPUs: the same results, without waiting."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from atelier.engine.config.blocks import MLPS
from atelier.engine.model import expert_mlp, moe
from atelier.engine.model.moe import ExpertWeights


def drawn(seed: int) -> tuple[ExpertWeights, Tensor, Tensor, Tensor]:
    """Experts, and tokens, choices (of some tokens none) and weights."""
    draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    experts = ExpertWeights(draw.randint(1, 6), 16, 32, kind=draw.choice(tuple(MLPS)))
    for weight in experts.parameters():
        torch.nn.init.normal_(weight, generator=generator)
    tokens, each = draw.randint(1, 20), draw.randint(1, experts.num_experts)
    chosen_NK = torch.rand(tokens, experts.num_experts, generator=generator).argsort(1)[:, :each]
    chosen_NK[torch.rand(tokens, each, generator=generator) < draw.choice((0.0, 0.3, 1.0))] = -1
    x_ND = torch.randn(tokens, 16, generator=generator).requires_grad_()
    share_NK = torch.rand(tokens, each, generator=generator).requires_grad_()
    return experts, x_ND, chosen_NK, share_NK


def unwritten(left: Tensor, right: Tensor, *, offs: Tensor) -> Tensor:
    """`grouped_mm` that leaves NaN where it writes nothing, as a GPU's memory may have."""
    ends: list[int] = offs.tolist()
    if left.dim() == 2 and right.dim() == 2:  # a product for each group of columns
        found = left.new_full((len(ends), left.shape[0], right.shape[1]), torch.nan)
    else:
        found = left.new_full((left.shape[0], right.shape[2]), torch.nan)
    for group, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if begin == end:
            continue
        if right.dim() == 2:
            found[group] = left[:, begin:end] @ right[begin:end]
        else:
            found[begin:end] = left[begin:end] @ right[group]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_results_and_gradients_are_those_of_counts_on_the_host(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts, x_ND, chosen_NK, share_NK = drawn(seed)
    found: list[list[Tensor]] = []
    for stays in (False, True):
        monkeypatch.setattr(moe, "may_stay", lambda *_, stays=stays: stays)
        with monkeypatch.context() as patch:
            if stays:
                patch.setattr(expert_mlp.F, "grouped_mm", unwritten)
            y_ND, load_X = experts(x_ND, chosen_NK, share_NK)
            gradients = torch.autograd.grad(y_ND.square().sum(), [x_ND, share_NK, *experts.weights()])
        found.append([y_ND, load_X, *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


class Waits(TorchDispatchMode):
    """Notes the operations whose result or size a host must wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        is_by_mask = name == "index" and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if is_by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select", "unique2", "equal"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_neither_pass_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    experts, x_ND, chosen_NK, share_NK = drawn(3)
    for stays in (True, False):
        monkeypatch.setattr(moe, "may_stay", lambda *_, stays=stays: stays)
        with Waits() as waits:
            y_ND, _ = experts(x_ND, chosen_NK, share_NK)
            y_ND.square().sum().backward()
        assert bool(waits.found) != stays, waits.found
