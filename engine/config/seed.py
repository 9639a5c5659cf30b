"""Named random seeds: every generator is seeded by (seed, names...), so none depends on the order of calls.
Torch-free.
"""

import hashlib


def seed_of(seed: int, *names: str | int) -> int:
    """The 63-bit seed of the generator `names`, equal on every machine and layout."""
    text = "/".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
