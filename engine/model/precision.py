"""In which type a matrix product will be computed."""

import torch
from torch import Tensor


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Autocast's type where it is on for the weight's device, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
