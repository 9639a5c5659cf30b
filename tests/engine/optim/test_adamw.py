"""AdamW against its formula, and which weights it decays."""

import pytest
import torch
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.optim.load import build, set_lr

SPEC = AdamW(lr=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3)


def weights_of(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"norm": (5,), "matrix": (5, 3), "bias": (3,), "table": (7, 5)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))
        for name, shape in shapes.items()
    }


def gradients(step: int, weights: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(w.shape, generator=generator, dtype=w.dtype) for name, w in weights.items()}


def trained(dtype: torch.dtype, num_steps: int = 5) -> dict[str, nn.Parameter]:
    weights = weights_of(dtype)
    optimizer = build(SPEC, weights.items())
    for step in range(num_steps):
        set_lr(optimizer, 0.01 * (step + 1))
        for name, gradient in gradients(step, weights).items():
            weights[name].grad = gradient
        optimizer.step()
    return weights


def test_equals_the_formula_with_decay_on_matrices_only_and_a_moving_rate() -> None:
    weights = trained(torch.float64)
    expected = {name: weight.detach().clone() for name, weight in weights_of().items()}
    first = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    second = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for step in range(5):
        lr = 0.01 * (step + 1)
        for name, gradient in gradients(step, weights).items():
            first[name] = 0.8 * first[name] + 0.2 * gradient
            second[name] = 0.9 * second[name] + 0.1 * gradient**2
            decay = 0.3 if gradient.dim() >= 2 else 0.0
            mean, square = first[name] / (1 - 0.8 ** (step + 1)), second[name] / (1 - 0.9 ** (step + 1))
            expected[name] = expected[name] * (1 - lr * decay) - lr * mean / (square.sqrt() + 1e-6)
    for name, weight in weights.items():
        assert (weight - expected[name]).abs().max() < 1e-14


def test_two_trainings_agree_in_every_bit() -> None:
    one, other = trained(torch.float32), trained(torch.float32)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_frozen_and_repeated_weights_are_left_out() -> None:
    weights = weights_of()
    weights["table"].requires_grad_(False)
    optimizer = build(SPEC, [*weights.items(), ("again", weights["matrix"])])
    groups = [[id(weight) for weight in group["params"]] for group in optimizer.param_groups]
    assert groups == [[id(weights["matrix"])], [id(weights["norm"]), id(weights["bias"])]]


def test_nothing_to_train_is_refused() -> None:
    weights = weights_of()
    for weight in weights.values():
        weight.requires_grad_(False)
    with pytest.raises(ConfigError, match="no weight is trainable"):
        build(SPEC, weights.items())
