"""Dropout whose mask is a pure function of (seed, sample, place, layer, feature): the same in any layout.

B rows, T tokens, D hidden
"""

import torch
from torch import Tensor

_A, _B = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64  # SplitMix64's constants, as signed numbers
_C = 0x94D049BB133111EB - 2**64
_LAYER = 0x2545F4914F6CDD1D
_BITS = 31


def noise_keys(seed: int, samples_B: Tensor, places_T: Tensor) -> Tensor:
    """[B, T] int64: a key for every token of the samples with these numbers."""
    return _mixed(_mixed(samples_B + seed)[:, None] + places_T * _A)


def layer_keys(noise_BT: Tensor, layer: int) -> Tensor:
    """The keys of one layer."""
    return noise_BT + layer * _LAYER


def dropout(x_BTD: Tensor, probability: float, noise_BT: Tensor, branch: int) -> Tensor:
    """x, each number zeroed with `probability`, the rest scaled up; `branch` tells a layer's uses apart."""
    features_D = torch.arange(x_BTD.shape[-1], device=x_BTD.device)
    bits_BTD = _mixed(noise_BT[..., None] + branch * _C + features_D * _A) & (2**_BITS - 1)
    keep_BTD = bits_BTD >= int(probability * 2**_BITS)
    return x_BTD * keep_BTD.to(x_BTD.dtype) * (1.0 / (1.0 - probability))


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014) on int64, which wraps around; shifts are logical."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * _B
    x = (x ^ ((x >> 27) & (2**37 - 1))) * _C
    return x ^ ((x >> 31) & (2**33 - 1))
