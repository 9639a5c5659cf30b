"""In which type a matrix product will be computed."""

import torch
from torch import Tensor


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Autocast's type where it is on for the weight's device, else the weight's own."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def rounded(x: Tensor) -> Tensor:
    """`x` in the type of products, once for all that read it: autocast would cast it, keep it and send it for
    each of them.
    """
    return x.to(compute_dtype(x))
