"""float8 products, emulated on a CPU: rounded as on a GPU, and refused where they cannot be computed."""

import subprocess
import sys

import pytest
import torch

from atelier.engine.config.error import ConfigError
from atelier.engine.parallel.compute import check_float8
from tests.checkout import TOP

PROGRAM = """
import torch
from atelier.engine.model.load import build, initialise
from atelier.engine.parallel.compute import use_float8
from atelier.engine.config.model.gpt import GPT

spec = GPT(num_layers=2, hidden=32, num_heads=2, ffn=40, vocab=64)
batch = {
    "tokens_BT": torch.arange(32).view(2, 16), "positions_BT": torch.arange(16).expand(2, 16),
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
assert rounded.blocks[0].attention.query.weight.grad.abs().sum() > 0
print("rounded")
"""


def test_blocks_compute_in_float8_and_weights_keep_their_names() -> None:
    pytest.importorskip("torchao", reason="torchao is missing: it is of the extra fp8")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip().endswith("rounded"), done.stderr[-2000:]


def test_a_cpu_is_refused_with_the_precision_that_runs_there() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.precision: fp8, but the device is a CPU; .*precision=bf16"
    ):
        check_float8(torch.device("cpu"))
