"""Whether a device has 16-bit arithmetic."""

import torch


def has_half(device: torch.device) -> bool:
    """Whether bf16 products are a gain on `device`. A CPU without AVX-512 (most laptops) computes them in
    software, 60 times slower than float32 ones: there the same training, `precision: bf16`, runs in float32,
    which is only more exact.
    """
    if device.type != "cpu":
        return True
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
