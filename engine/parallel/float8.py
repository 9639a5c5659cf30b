"""Matrix products of blocks in float8 with scales made anew each time (2209.05433), by torchao."""

import torch
from torch import nn

from atelier.engine.spec.error import ConfigError

OLDEST = (8, 9)  # compute capability of the first GPUs that have float8 products
MULTIPLE = 16  # of both sides of a matrix, for the kernels


def check_float8(device: torch.device) -> None:
    """ConfigError where float8 cannot be computed."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= OLDEST:
        return
    raise ConfigError(
        "train.precision",
        f"fp8, but the device is {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'a CPU'}",
        "it needs a GPU of compute capability 8.9 or newer; precision=bf16 runs everywhere",
    )


def use_float8(model: nn.Module, *, emulate: bool = False) -> None:
    """Swap the linear layers of the plain model's blocks in place; their weights keep names and types.
    `emulate`: round as float8 does, compute in the weights' type (for a CPU).
    """
    try:
        # an extra: workers without such GPUs need it not
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise ConfigError(
            "train.precision",
            "fp8 needs torchao",
            "pip install -e '.[fp8]' in the checkout, or precision=bf16",
        ) from None

    def is_chosen(module: nn.Module, path: str) -> bool:
        return (
            isinstance(module, nn.Linear)
            and path.startswith("blocks.")
            and not (module.in_features % MULTIPLE or module.out_features % MULTIPLE)
        )

    convert_to_float8_training(model, config=Float8LinearConfig(emulate=emulate), module_filter_fn=is_chosen)
