"""Models that are read from their files as they compute: what of them is in memory at least. Torch-free."""

import re
from collections import Counter
from math import prod

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec

STREAM = 2  # buffers that a stream needs: one computes, one is read
LINE = 64  # bytes; products may differ in their last bits by where in a line of the cache a weight begins
BLOCK = re.compile(r"(.*?\bblocks\.\d+\.)(.*)")


def check_streamed(place: str, gb: float, name: str, model: ModelSpec, itemsize: int) -> None:
    """Check that `gb` of memory hold all weights of a model, whose vocabulary is known, or what is needed of
    it at once, by `itemsize` bytes a number.
    """
    if gb and gb * 1e9 < min(model.num_params() * itemsize, least_bytes(model, itemsize, line=1)):
        raise too_little(place, gb, name, least_bytes(model, itemsize))


def too_little(place: str, gb: float, name: str, least: int) -> ConfigError:
    """What to raise; `least` is rounded up to three digits."""
    step = 10 ** max(0, len(str(least)) - 3)
    return ConfigError(
        place,
        f"{gb:.4g} GB cannot hold two blocks and two experts of {name} beside what is always there",
        f"{-(-least // step) * step / 1e9:.4g} GB is the least for this model",
    )


def least_bytes(model: ModelSpec, itemsize: int, *, line: int = LINE) -> int:
    """Of what is outside the blocks, two blocks without their experts, and two experts, the largest; every
    weight with the lines in memory that it may begin and end in.
    """

    def room(*shape: int) -> int:
        return (-(-prod(shape) * itemsize // line) + (line > 1)) * line

    rest, blocks, experts = 0, Counter[str](), Counter[str]()
    for weight, shape in model.shapes().items():
        found = BLOCK.match(weight)
        if found is None:
            rest += room(*shape)
        elif ".experts." in f".{found[2]}" and len(shape) == 3:
            experts[found[1]] += room(*shape[1:])
        else:
            blocks[found[1]] += room(*shape)
    return rest + STREAM * (max(blocks.values(), default=0) + max(experts.values(), default=0))
