"""Foreign adapters are imported completely, or refused with the name of the unsupported part."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.config.foreign.adapters import Scaled, scaled
from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.lora import of_base
from atelier.engine.model.weights import StoredWeights

BASE = GPT(num_layers=2, hidden=32, num_heads=2, num_kv_heads=1, vocab=64, qk_norm=True, head_dim=24)
PLAIN: dict[str, Any] = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "target_modules": ["q_proj", "down_proj"],
    "use_dora": False, "rank_pattern": {}, "modules_to_save": None, "task_type": "CAUSAL_LM",
    "a_key_of_tomorrow": None,
}  # fmt: skip


def additions() -> dict[str, Tensor]:
    found = {}
    sizes = {"self_attn.q_proj": (48, 32), "mlp.down_proj": (32, BASE.inner)}
    for number in range(2):
        for module, (outputs, inputs) in sizes.items():
            name = f"base_model.model.model.layers.{number}.{module}"
            found[f"{name}.lora_A.weight"] = torch.randn(4, inputs)
            found[f"{name}.lora_B.weight"] = torch.randn(outputs, 4)
    return found


def read(folder: Path, weights: dict[str, Tensor], spec: GPT = BASE) -> tuple[str, Any]:
    save_file(weights, folder / "adapter_model.safetensors")
    return of_base(StoredWeights(folder / "adapter_model.safetensors"), spec, Scaled(4, 1.5), "here")


def test_the_factor_is_pefts() -> None:
    assert scaled(PLAIN, "here") == Scaled(4, 1.5)
    assert scaled(PLAIN | {"use_rslora": True}, "here") == Scaled(4, 3.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_dora", True), ("rank_pattern", {"q_proj": 8}), ("alpha_pattern", {"q_proj": 8}),
        ("modules_to_save", ["lm_head"]), ("lora_bias", True), ("layer_replication", [[0, 2]]),
        ("trainable_token_indices", [3]), ("target_parameters", ["experts.gate"]), ("peft_type", "IA3"),
        ("bias", "all"), ("init_lora_weights", "pissa"),
        ("init_lora_weights", "olora"), ("r", 0), ("r", True), ("lora_alpha", "16"), ("a_key_of_tomorrow", 1),
    ],
)  # fmt: skip
def test_what_is_not_plain_lora_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"here: {key}: "):
        scaled(PLAIN | {key: value}, "here")


def test_additions_are_found_under_the_names_of_the_family(tmp_path: Path) -> None:
    given = additions()
    family, found = read(tmp_path, given)
    assert family == "qwen3" and len(found) == 4
    inner, outer, scale = found["blocks.1.attention.query.weight"]
    prefix = "base_model.model.model.layers.1.self_attn.q_proj"
    assert torch.equal(inner, given[f"{prefix}.lora_A.weight"]) and scale == 1.5
    assert torch.equal(outer, given[f"{prefix}.lora_B.weight"])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda w, n: w.pop(n.replace("lora_A", "lora_B")), "lora_B.weight is missing"),
        (lambda w, n: w.update({n: torch.randn(5, 32)}), r"is \(5, 32\), but should be \(4, 32\)"),
        (lambda w, n: w[n].fill_(float("nan")), "has values that are not finite"),
        (lambda w, n: w.update({"base_model.model.lm_head.weight": torch.ones(2)}), "only additions"),
        (lambda w, n: w.update({"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": w[n].clone()}),
         "the base has no model.layers.7.mlp.up_proj, which the adapter changes"),
        (lambda w, n: w.clear(), "only additions"),
    ],
)  # fmt: skip
def test_weights_that_are_not_of_the_base_are_refused(tmp_path: Path, damage: Any, said: str) -> None:
    weights = additions()
    damage(weights, "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    with pytest.raises(DataError, match=said):
        read(tmp_path, weights)
