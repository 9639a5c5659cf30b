"""Compute a model in emulated float8; run by test_float8.py: torchao loads torch's compiler."""

import torch

from atelier.engine.config.model.gpt import GPT
from atelier.engine.model.load import build, initialise
from atelier.engine.parallel.compute import use_float8


def main(_: list[str]) -> int:
    spec = GPT(num_layers=2, hidden=32, num_heads=2, ffn=40, vocab=64)
    batch = {
        "tokens_BT": torch.arange(32).view(2, 16),
        "positions_BT": torch.arange(16).expand(2, 16),
        "documents_BT": torch.zeros(2, 16, dtype=torch.long),
    }
    plain, rounded = build(spec), build(spec)
    for model in (plain, rounded):
        initialise(model, seed=1, name="x")
    use_float8(rounded, emulate=True)
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in rounded.named_parameters()]
    kinds = {path: type(module).__name__ for path, module in rounded.named_modules()}
    assert kinds["blocks.1.attention.query"] == "Float8Linear"
    assert kinds["blocks.1.mlp.up"] == "Linear"  # 40 is no multiple of 16
    apart = (plain(batch).hidden - rounded(batch).hidden).abs().max().item()
    assert 1e-4 < apart < 0.5, apart
    rounded(batch).hidden.pow(3).sum().backward()
    gradient = rounded.get_parameter("blocks.0.attention.query.weight").grad
    assert gradient is not None and gradient.abs().sum() > 0
    return 0
