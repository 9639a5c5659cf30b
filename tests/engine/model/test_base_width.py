"""muP: how a model and its optimiser scale with the width, so that a step moves activations equally far at
every width (the coordinate check of 2203.03466, appendix D.1).
"""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atelier.engine.config.experts import Experts
from atelier.engine.config.model.gpt import GPT, Multipliers
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.optim.muon import Muon
from atelier.engine.config.registry import OptimSpec
from atelier.engine.config.role import Role, Trainable
from atelier.engine.model.contract import Model
from atelier.engine.model.load import blank, build, initialise
from atelier.engine.optim.load import build as build_optimizer
from atelier.engine.optim.load import set_lr
from tests.engine.trainings import TrainingSetup, model, role, train

Kind = Literal["adamw", "muon"]
WIDTHS, BASE, STEPS, LR = (64, 128, 256), 64, 4, 3e-3
VOCAB, ROWS, LENGTH = 64, 4, 16


def spec(width: int, **more: object) -> GPT:
    """Heads stay 16 wide: more of them make a model wider."""
    shape = {"num_layers": 2, "hidden": width, "num_heads": width // 16, "vocab": VOCAB}
    return GPT.model_validate(shape | more)


def network(of: GPT, seed: int = 0) -> Model:
    with blank():
        made = build(of)
    made.to_empty(device="cpu")
    initialise(made, seed=seed, name="model")
    return made


def optim(kind: Kind) -> OptimSpec:
    return AdamW(lr=LR) if kind == "adamw" else Muon(lr=LR)


def rows() -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(5)
    ids = torch.cumsum(torch.randint(1, 4, (ROWS, LENGTH + 1), generator=generator), 1) % VOCAB
    places = torch.arange(LENGTH).expand(ROWS, LENGTH)
    batch = {"tokens_BT": ids[:, :-1], "documents_BT": torch.zeros_like(places), "positions_BT": places}
    return batch, ids[:, 1:]


def moved(of: GPT, kind: Kind) -> dict[str, float]:
    """How far some steps move what attention and MLPs add, and the logits: root mean squares."""
    made, (batch, labels_BT) = network(of), rows()
    seen: dict[str, Tensor] = {}

    def watch(name: str, module: nn.Module) -> None:
        def keep(_: nn.Module, __: object, out: Tensor | tuple[Tensor, ...]) -> None:
            seen[name] = (out if isinstance(out, Tensor) else out[0]).detach()

        module.register_forward_hook(keep)

    for number, block in enumerate(made.blocks):
        watch(f"attention {number}", block.get_submodule("attention"))
        watch(f"mlp {number}", block.get_submodule("mlp"))

    def logits() -> Tensor:
        found = made(batch).hidden @ made.head_weight.T
        seen["logits"] = found.detach()
        return found

    logits()
    before = dict(seen)
    optimizer = build_optimizer(optim(kind), made.named_parameters(), of.lr_factors())
    set_lr(optimizer, LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits().flatten(0, 1), labels_BT.flatten()).backward()
        optimizer.step()
    logits()
    return {name: float((seen[name] - before[name]).square().mean().sqrt()) for name in seen}


def slopes(kind: Kind, **more: object) -> dict[str, float]:
    """Exponents of the width by which steps move each activation: of the line through all widths."""
    found = [moved(spec(width, **more), kind) for width in WIDTHS]
    logs_W = np.log(WIDTHS)
    return {name: float(np.polyfit(logs_W, np.log([one[name] for one in found]), 1)[0]) for name in found[0]}


@pytest.mark.parametrize(("kind", "tied"), [("adamw", True), ("adamw", False), ("muon", True)])
def test_steps_move_activations_equally_far_at_every_width_with_a_base_and_not_without(
    kind: Kind, tied: bool
) -> None:
    with_base, without = slopes(kind, tied=tied, base_width=BASE), slopes(kind, tied=tied)
    assert all(abs(slope) < 0.25 for slope in with_base.values()), with_base
    assert all(slope > 0.5 for slope in without.values()), without


def test_each_class_of_weights_has_the_factor_that_the_page_says() -> None:
    """docs/run/sweeps.md#one-learning-rate-for-all-widths"""
    of = spec(256, base_width=64, tied=False, num_experts=4, experts=Experts(every=2), norm="layer")
    made, factors = network(of), of.lr_factors()
    adamw = build_optimizer(optim("adamw"), made.named_parameters(), factors)
    muon = build_optimizer(optim("muon"), made.named_parameters(), factors)
    for optimizer in (adamw, muon):
        set_lr(optimizer, LR)
        of_weight = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for name, weight in made.named_parameters():
            group, is_matrix = of_weight[id(weight)], weight.dim() > 1
            is_inside = is_matrix and name.startswith("blocks.")
            if group.get("is_muon"):
                assert is_inside and group["lr"] == Muon(lr=LR).matrix_lr
                assert group["weight_decay"] == 0.1
                continue
            assert group["lr"] == LR * (0.25 if is_inside else 1), name
            assert group["lr"] * group["weight_decay"] == pytest.approx(LR * 0.1 * is_matrix)
    left = [name for name in factors if not name.endswith("router.weight")]
    assert {f"blocks.1.mlp.{name}" for name in ("router.weight", "experts.up")} < factors.keys() and left
    plain = network(of.model_copy(update={"base_width": 0}))
    for name, weight in made.named_parameters():
        ratio = 0.5 if name in factors else 1.0
        assert torch.allclose(weight, plain.get_parameter(name) * ratio, rtol=1e-6), name
    assert of.logit_scale == 0.25
    assert spec(256, base_width=64, multipliers=Multipliers(logits=0.5)).logit_scale == 0.125


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_model_as_wide_as_its_base_has_the_bits_of_one_without(tmp_path: Path, kind: Kind) -> None:
    setups = [TrainingSetup(tmp_path / str(base)) for base in (0, 32, 16)]
    for setup, base in zip(setups, (0, 32, 16), strict=True):
        one = role(shape=model(32, base_width=base)).model_copy(update={"optim": optim(kind)})
        setup.train(setup.training({"model": one}, train(6)))
    none, same, narrower = setups
    assert same.weights("model") == none.weights("model") != narrower.weights("model")
    assert same.curve("model") == none.curve("model")
    assert [line["values"]["lr"] for line in narrower.curve("model")] == [
        line["values"]["lr"] for line in none.curve("model")
    ]


def test_a_base_is_identity_and_none_is_what_it_always_was() -> None:
    assert spec(64).as_identity() == spec(64, base_width=0).as_identity()
    assert spec(64, base_width=64).as_identity() == spec(64).as_identity() | {"base_width": 64}
    assert spec(64).lr_factors() == spec(64, base_width=64).lr_factors() == {}
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        spec(64, base_width=-1)


def test_what_an_adapter_adds_learns_at_the_rate_given(tmp_path: Path) -> None:
    """Low-rank factors are not matrices of the model's width: they have no factor."""
    one = role(shape=model(32, base_width=16), trainable=Trainable(kind="lora", rank=2, targets=("query",)))
    assert isinstance(one, Role) and not [name for name in one.model.lr_factors() if "lora" in name]
    setup = TrainingSetup(tmp_path)
    setup.train(setup.training({"model": one}, train(4)))
    assert setup.summary("model")["step"] == 4
