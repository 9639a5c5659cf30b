"""Initial weights by name, and models as files."""

import hashlib
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError, DamageError, DataError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.artifact import open_input
from atelier.engine.model.load import build, initialise, read_model
from tests.engine.trainings import artifact, model_files
from tests.forks import start_gang

SPEC = GPT(num_layers=2, hidden=32, num_heads=4, num_kv_heads=2, vocab=50, norm="layer", tied=False)


def weights_of(seed: int = 1, name: str = "role", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    model = build(SPEC).to(dtype)
    initialise(model, seed=seed, name=name)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_initial_weights_do_not_depend_on_order_or_on_what_was_drawn_before() -> None:
    class Reversed(nn.Module):
        """The same weights, met in the opposite order."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = build(SPEC)

        def named_parameters(self, *args: object, **kwargs: object):  # type: ignore[override]
            return reversed(list(self.inner.named_parameters()))

        def initial(self, name: str) -> tuple[str, float]:
            return self.inner.initial(name)  # type: ignore[operator]

    torch.manual_seed(99)
    model = Reversed()
    torch.rand(17)
    initialise(model, seed=1, name="role")
    assert same(dict(model.inner.named_parameters()), weights_of())


def test_a_model_built_on_meta_begins_as_one_built_in_place() -> None:
    with torch.device("meta"):
        model = build(SPEC)
    model.to_empty(device="cpu")
    initialise(model, seed=1, name="role")
    assert same(dict(model.named_parameters()), weights_of())


def test_a_sharded_model_begins_as_a_whole_one(tmp_path: Path) -> None:
    start_gang("tests.parity.gang", tmp_path, 2, "tests.engine.model.gang", str(tmp_path / "meeting"))


def test_fp64_begins_with_the_numbers_of_fp32() -> None:
    rough, exact = weights_of(), weights_of(dtype=torch.float64)
    assert same({name: weight.double() for name, weight in rough.items()}, exact)


def test_seed_and_name_each_give_other_weights() -> None:
    first = weights_of()["embed.weight"]
    assert not torch.equal(first, weights_of(seed=2)["embed.weight"])
    assert not torch.equal(first, weights_of(name="other")["embed.weight"])


def test_weights_of_one_shape_differ_from_each_other() -> None:
    weights = weights_of()
    assert not torch.equal(weights["embed.weight"], weights["head.weight"])
    assert not torch.equal(
        weights["blocks.0.attention.query.weight"], weights["blocks.1.attention.query.weight"]
    )


def test_residual_outputs_begin_smaller_and_norms_as_identity() -> None:
    weights = weights_of()
    for name, weight in weights.items():
        if "norm" in name:
            assert torch.equal(weight, torch.full_like(weight, float(name.endswith("weight"))))
            continue
        expected = 0.02 * (0.5 if name.endswith(("attention.out.weight", "mlp.down.weight")) else 1.0)
        assert weight.std().item() == pytest.approx(expected, rel=0.1)
        assert abs(weight.mean().item()) < 0.1 * expected


def test_the_same_weights_give_the_same_bytes() -> None:
    weights = weights_of()
    backwards = dict(reversed([(f"_orig_mod.{name}", weight.clone()) for name, weight in weights.items()]))
    digests = [
        {name: hashlib.sha256(data).hexdigest() for name, data in model_files(state, SPEC).items()}
        for state in (weights, backwards)
    ]
    assert digests[0] == digests[1]
    assert sorted(digests[0]) == ["config.json", "model.safetensors"]


def test_a_written_model_reads_back_bit_for_bit(tmp_path: Path) -> None:
    weights = weights_of()
    source = open_input(artifact(tmp_path, "model", model_files(weights, SPEC)))
    model, spec = read_model(source, tmp_path / "scratch")
    assert spec == SPEC
    assert same(dict(model.named_parameters()), weights)
    assert all(weight.requires_grad for weight in model.parameters())
    exact, _ = read_model(source, tmp_path / "scratch", dtype=torch.float64)
    assert all(weight.dtype == torch.float64 for weight in exact.parameters())


def test_a_flipped_bit_is_found_before_the_weights_are_parsed(tmp_path: Path) -> None:
    source = open_input(artifact(tmp_path, "model", model_files(weights_of(), SPEC)))
    place = tmp_path / "payload" / "model.safetensors"
    data = bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)
    with pytest.raises(DamageError, match=r"model\.safetensors"):
        read_model(source, tmp_path / "scratch")


def test_weights_that_do_not_fit_the_config_are_named(tmp_path: Path) -> None:
    files = model_files(weights_of(), SPEC)
    state = safetensors.torch.load(files["model.safetensors"])
    state["blocks.2.more"] = state.pop("blocks.1.norm1.bias")
    state["norm.bias"] = torch.zeros(3)
    files["model.safetensors"] = safetensors.torch.save(state)
    source = open_input(artifact(tmp_path, "model", files))
    with pytest.raises(
        DataError, match=r"no blocks.1.norm1.bias; unknown blocks.2.more; norm.bias is \(3,\), not \(32,\)"
    ):
        read_model(source, tmp_path / "scratch")


def test_a_config_of_an_unknown_kind_names_those_there_are(tmp_path: Path) -> None:
    files = model_files(weights_of(), SPEC) | {"config.json": b'{"kind": "gtp"}'}
    with pytest.raises((DataError, ConfigError), match="did you mean gpt"):
        read_model(open_input(artifact(tmp_path, "model", files)), tmp_path / "scratch")
