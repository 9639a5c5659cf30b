"""CPUs without 16-bit arithmetic."""

import pytest
import torch

from atelier.engine.config.base import parse
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.io import machine
from atelier.engine.model.placement import has_half
from atelier.engine.optim import muon
from atelier.engine.parallel import compute
from atelier.engine.plan.estimate import Setting

CPU = torch.device("cpu")


@pytest.mark.parametrize(("is_there", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bf16_is_computed_in_float32_where_there_is_no_16_bit_arithmetic(
    is_there: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "has_half", lambda device: is_there)
    x = torch.ones(2, 2)
    with compute.arithmetic("bf16", CPU):
        assert (x @ x).dtype == dtype


def test_muon_turns_a_matrix_more_exactly_there(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(16, 24, generator=torch.Generator().manual_seed(1))
    exact = muon.orthogonal(matrix.double(), 5)
    errors = []
    for is_there in (True, False):
        monkeypatch.setattr(muon, "has_half", lambda device, is_there=is_there: is_there)
        errors.append(float((muon.orthogonal(matrix, 5) - exact).abs().max()))
    assert errors[1] < 1e-5 < errors[0]


def test_the_control_plane_sees_the_arithmetic_that_torch_sees() -> None:
    assert machine.has_half() == has_half(CPU)


def test_plans_count_the_activations_of_float32_there() -> None:
    model = {"kind": "gpt", "num_layers": 2, "hidden": 64, "num_heads": 2, "vocab": 512}
    optim = {"kind": "adamw", "lr": 1e-3, "schedule": {"kind": "constant"}}
    role = parse(Role, {"model": model, "objective": {"lm": {"kind": "lm"}}, "optim": optim}, "")
    train = Train(steps=1, global_batch=8, sequence=64)
    with_it, without, asked = (
        Setting.of(role, how, Pool(gpu="cpu", half=half), 512)
        .estimate(how, Parallel(shard=1, threads=1), steps=1)
        .memory
        for half, how in (
            (True, train),
            (False, train),
            (True, train.model_copy(update={"precision": "fp32"})),
        )
    )
    assert without == asked
    assert without.activations > 1.5 * with_it.activations
