"""Hash whole numbers, equally on every device: SplitMix64 (Steele, Lea, Flood 2014) on int64 with
wrap-around.
"""

from torch import Tensor

# its constants as signed numbers
A, B = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64
C = 0x94D049BB133111EB - 2**64


def mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser; shifts are logical."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * B
    x = (x ^ ((x >> 27) & (2**37 - 1))) * C
    return x ^ ((x >> 31) & (2**33 - 1))
