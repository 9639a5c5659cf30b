"""Muon moves matrices by an orthogonal update and everything else as AdamW does."""

import torch

from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.optim.muon import Muon
from atelier.engine.optim.load import build, set_lr
from atelier.engine.optim.muon import orthogonal


def weights(dtype: torch.dtype = torch.float64) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"embed.weight": (20, 8), "blocks.0.mlp.up.weight": (12, 8), "norm.weight": (8,)}
    found = {
        n: torch.nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for n, s in shapes.items()
    }
    for parameter in found.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return found


def test_the_update_has_singular_values_near_one() -> None:
    matrix = torch.randn(24, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.linalg.svdvals(orthogonal(matrix, 5))
    assert values.min() > 0.5 and values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert ((orthogonal(matrix, 5) * (u @ v)).sum() / 16) > 0.8  # it points where U V^T points


def test_a_tall_and_a_wide_matrix_turn_alike() -> None:
    matrix = torch.randn(24, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(orthogonal(matrix.T.contiguous(), 5), orthogonal(matrix, 5).T)


def test_embeddings_and_vectors_move_as_under_adamw() -> None:
    ours, theirs = weights(), weights()
    muon = build(Muon(lr=0.01), list(ours.items()))
    adamw = build(AdamW(lr=0.01), list(theirs.items()))
    for _ in range(3):
        muon.step()
        adamw.step()
    for name in ("embed.weight", "norm.weight"):
        assert torch.equal(ours[name], theirs[name])
    assert not torch.equal(ours["blocks.0.mlp.up.weight"], theirs["blocks.0.mlp.up.weight"])


def test_the_matrices_between_hidden_states_are_muons_and_no_others() -> None:
    spec = Ernie(
        num_layers=1, hidden=8, num_heads=2, vocab=20, prompts=3, classes={"topic": 2}, nlg=Net(num_layers=1)
    )
    named = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in spec.shapes().items()}
    groups = build(Muon(lr=0.01), list(named.items())).param_groups
    mine = {id(weight) for group in groups if group["is_muon"] for weight in group["params"]}
    left = {name for name, weight in named.items() if weight.dim() == 2 and id(weight) not in mine}
    assert left == {"embed.weight", "prompts.weight", "classes.topic.weight"}
    assert {"nlg.enter.weight", "nlg.leave.weight"} <= {name for name in named if id(named[name]) in mine}


def test_both_learning_rates_follow_the_schedule_in_proportion() -> None:
    optimizer = build(Muon(lr=0.01, matrix_lr=0.02), list(weights().items()))
    set_lr(optimizer, 0.005)
    assert {group["is_muon"]: group["lr"] for group in optimizer.param_groups} == {True: 0.01, False: 0.005}


def test_a_matrix_moves_by_its_rate_whatever_the_size_of_its_gradient() -> None:
    moved = []
    for size in (1.0, 1000.0):
        parameters = weights()
        before = parameters["blocks.0.mlp.up.weight"].detach().clone()
        parameters["blocks.0.mlp.up.weight"].grad *= size  # type: ignore[operator]
        build(Muon(lr=0.01, weight_decay=0.0), list(parameters.items())).step()
        moved.append(parameters["blocks.0.mlp.up.weight"].detach() - before)
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-6, atol=1e-9)


def test_each_matrix_of_each_expert_turns_alone_and_the_router_moves_as_under_adamw() -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = {"blocks.0.mlp.experts.up": (3, 12, 8), "blocks.0.mlp.router.weight": (3, 8)}
    drawn = {name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()}
    moved = {name: torch.nn.Parameter(weight.clone()) for name, weight in drawn.items()}
    for parameter in moved.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator).double()
    spec = Muon(lr=0.01, weight_decay=0.0)
    muon = build(spec, list(moved.items()))
    set_lr(muon, spec.lr)
    muon.step()
    up, router = moved["blocks.0.mlp.experts.up"], moved["blocks.0.mlp.router.weight"]
    assert up.grad is not None and router.grad is not None
    update = up.grad.lerp(torch.zeros_like(up).lerp(up.grad, 1 - spec.momentum), spec.momentum)
    for expert in range(3):
        turned = orthogonal(update[expert], spec.iterations)
        expected = drawn["blocks.0.mlp.experts.up"][expert] - spec.matrix_lr * (12 / 8) ** 0.5 * turned
        torch.testing.assert_close(up[expert].detach(), expected, rtol=0, atol=1e-12)
    alone = torch.nn.Parameter(drawn["blocks.0.mlp.router.weight"].clone())
    alone.grad = router.grad.clone()
    build(AdamW(lr=0.01, weight_decay=0.0), [("blocks.0.mlp.router.weight", alone)]).step()
    assert torch.equal(router, alone)
