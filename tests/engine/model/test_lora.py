"""Low-rank additions to a plain model, merged, written and read."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Trainable
from atelier.engine.io.artifact import open_input
from atelier.engine.model import lora
from atelier.engine.model.load import build, initialise
from atelier.engine.model.weights import in_memory
from tests.engine.trainings import artifact

TARGETS = ("query", "value", "down")
LORA = Trainable(kind="lora", rank=4, alpha=12.0, targets=TARGETS)
BATCH = {
    "tokens_BT": torch.arange(20).view(2, 10) % 17,
    "positions_BT": torch.arange(10).repeat(2, 1),
    "documents_BT": torch.zeros(2, 10, dtype=torch.long),
}


def model_of(**settings: Any) -> nn.Module:
    spec = GPT(**{"num_layers": 2, "hidden": 32, "num_heads": 2, "vocab": 17, "init_std": 0.2} | settings)
    model = build(spec).double()
    initialise(model, seed=1, name="role")
    return model


def adapted(trainable: Trainable = LORA, *, trained: bool = True) -> nn.Module:
    """A model with additions; trained = B is no longer 0."""
    model = model_of()
    lora.apply(model, trainable, seed=1, name="role")
    for name, weight in model.named_parameters():
        if trained and "lora_B" in name:
            nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(len(name)))
    return model


def adapter_files(state: Mapping[str, Tensor], trainable: Trainable, *, base: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    weights = in_memory(state)
    lora.write_adapter(
        weights, trainable, lambda name, parts: files.update({name: b"".join(parts)}), base=base
    )
    return files


def hidden_of(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(BATCH).hidden


def test_at_first_nothing_is_changed() -> None:
    assert torch.equal(hidden_of(adapted(trained=False)), hidden_of(model_of()))


def test_the_output_is_that_of_the_weight_with_its_scaled_addition() -> None:
    model, by_hand = adapted(), model_of()
    for path in (
        f"blocks.{i}.{place}" for i in (0, 1) for place in ("attention.query", "attention.value", "mlp.down")
    ):
        layer = model.get_submodule(path)
        with torch.no_grad():
            product = layer.lora_B.weight @ layer.lora_A.weight  # type: ignore[union-attr]
            by_hand.get_submodule(path).weight += 12.0 / 4 * product  # type: ignore[operator]
    assert (hidden_of(model) - hidden_of(by_hand)).abs().max() < 1e-12
    assert (hidden_of(model) - hidden_of(model_of())).abs().max() > 0.01


def test_only_the_additions_are_trained() -> None:
    model = adapted()
    model(BATCH).hidden.square().mean().backward()
    trained = [name for name, weight in model.named_parameters() if weight.grad is not None]
    assert len(trained) == 2 * 2 * len(TARGETS)
    assert all(".lora_A." in name or ".lora_B." in name for name in trained)
    plain = [name for name, _ in model.named_parameters() if ".lora_" not in name]
    assert plain == [name for name, _ in model_of().named_parameters()]


def test_additions_begin_the_same_whatever_else_is_adapted() -> None:
    few = dict(adapted(trained=False).named_parameters())
    all_targets = Trainable(kind="lora", rank=4)
    many = dict(adapted(all_targets, trained=False).named_parameters())
    for name in few:
        assert torch.equal(few[name], many[name])


def test_merging_gives_a_plain_model_with_the_same_output() -> None:
    model = adapted()
    expected = hidden_of(model)
    from_state = model_of()
    merged = lora.merged(in_memory(model.state_dict()), LORA)
    from_state.load_state_dict({name: weight.gather() for name, weight in merged.items()})
    lora.merge(model)
    assert [name for name, _ in model.named_parameters()] == [
        name for name, _ in model_of().named_parameters()
    ]
    assert (hidden_of(model) - expected).abs().max() < 1e-12
    assert torch.equal(hidden_of(from_state), hidden_of(model))


def test_biases_stay_beside_additions_and_in_what_is_merged() -> None:
    model = model_of(bias=("qkv", "out", "mlp"))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)
    before, names = hidden_of(model), [name for name, _ in model.named_parameters()]
    lora.apply(model, LORA, seed=1, name="role")
    assert torch.equal(hidden_of(model), before)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    adapted_BTD = hidden_of(model)
    lora.merge(model)
    assert (hidden_of(model) - adapted_BTD).abs().max() < 1e-12
    assert sorted(name for name, _ in model.named_parameters()) == sorted(names)


def test_an_adapter_reads_back_bit_for_bit(tmp_path: Path) -> None:
    model = adapted()
    files = adapter_files(model.state_dict(), LORA, base="models:/plain@best")
    assert files == adapter_files(dict(reversed(model.state_dict().items())), LORA, base="models:/plain@best")
    weights, trainable = lora.read_adapter(
        open_input(artifact(tmp_path, "adapter", files)), tmp_path / "scratch"
    )
    assert trainable == LORA
    again = model_of()
    lora.attach(again, weights, trainable)
    assert torch.equal(hidden_of(again), hidden_of(model))


def test_adapter_files_are_in_pefts_format() -> None:
    files = adapter_files(adapted().state_dict(), LORA, base="plain")
    state = safetensors.torch.load(files["adapter_model.safetensors"])
    name = "base_model.model.blocks.1.mlp.down.lora_A.weight"
    assert state[name].shape == (4, 96)
    assert len(state) == 12
    config = json.loads(files["adapter_config.json"])
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 12.0)
    assert config["target_modules"] == list(TARGETS)
    assert config["base_model_name_or_path"] == "plain"


def test_an_adapter_of_another_method_is_refused(tmp_path: Path) -> None:
    files = adapter_files(adapted().state_dict(), LORA, base="plain")
    config = json.loads(files["adapter_config.json"]) | {"use_dora": True}
    files["adapter_config.json"] = json.dumps(config).encode()
    with pytest.raises(DataError, match="use_dora is set; only plain LoRA is supported"):
        lora.read_adapter(open_input(artifact(tmp_path, "adapter", files)), tmp_path / "scratch")


def test_an_adapter_of_another_model_is_refused() -> None:
    weights = {n: w for n, w in adapted().state_dict().items() if ".lora_" in n}
    with pytest.raises(DataError, match=r"does not fit the model at blocks\.1\."):
        lora.attach(model_of(num_layers=1), weights, LORA)


def test_a_target_that_no_block_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no matrix is called 'qury'; did you mean query"):
        lora.apply(model_of(), Trainable(kind="lora", targets=("qury",)), seed=1, name="role")


def test_the_usual_targets_fit_a_model_without_a_gate() -> None:
    model = model_of(mlp="gelu")
    lora.apply(model, Trainable(kind="lora"), seed=1, name="role")
    assert sum(weight.requires_grad for weight in model.parameters()) == 2 * 2 * 6


def test_training_all_weights_changes_no_module() -> None:
    model = model_of()
    lora.apply(model, Trainable(), seed=1, name="role")
    assert all(weight.requires_grad for weight in model.parameters())
    assert not any(isinstance(module, lora.LowRank) for module in model.modules())
