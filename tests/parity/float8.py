"""A gang on CPUs with emulated float8: `python -m tests.parity.gang tests.parity.float8 run.json`."""

import functools

import torch
from torch import nn

from atelier.engine.loop import build
from atelier.engine.parallel import compute
from tests.parity import gang


def _any(device: torch.device) -> None:
    """Every device has float8 products."""


def main(words: list[str]) -> int:
    compute.check_float8 = _any
    rounded: functools.partial[None] = functools.partial(compute.use_float8, emulate=True)

    def counted(model: nn.Module) -> None:
        rounded(model)
        assert any(type(each).__name__ == "Float8Linear" for each in model.modules())

    build.use_float8 = counted
    return gang.main(words)
