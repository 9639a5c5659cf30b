"""Assign blocks to pipeline stages by block costs and device speeds (resource-aware partition of ERNIE 3.0
Titan, 2112.12731, section 4.2). Torch-free.
"""

from collections.abc import Sequence
from itertools import accumulate

from atelier.engine.config.error import ConfigError


def partition(
    block_costs: Sequence[float],
    *,
    num_stages: int,
    speeds: Sequence[float] = (),
    after: float = 0.0,
) -> tuple[int, ...]:
    """The number of blocks of each stage, at least one, that minimises the time of the slowest stage; among
    equals the most even.

    `block_costs` and `after` (cost after the last block: head, students) have one unit, such as FLOPs.
    `speeds`: relative speed per stage. Raises ConfigError for more stages than blocks.
    """
    num_blocks = len(block_costs)
    speeds = tuple(speeds) or (1.0,) * num_stages
    if num_stages > num_blocks:
        raise ConfigError(
            "parallel.pipeline", f"{num_stages} stages, but {num_blocks} blocks", "use fewer stages"
        )
    sums = [0.0, *accumulate(block_costs)]

    def time_of(stage: int, begin: int, end: int) -> float:
        extra = after if stage == num_stages - 1 else 0.0
        return (sums[end] - sums[begin] + extra) / speeds[stage]

    # best[end] = (slowest stage, sum of squares, cuts) for the first stages over blocks 0 .. end - 1
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for stage in range(num_stages):
        found: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        last = num_blocks - (num_stages - 1 - stage)
        for begin, (slowest, squares, counts) in best.items():
            for end in range(begin + 1, last + 1) if stage < num_stages - 1 else (num_blocks,):
                time = time_of(stage, begin, end)
                option = (max(slowest, time), squares + time * time, (*counts, end - begin))
                if end not in found or option[:2] < found[end][:2]:
                    found[end] = option
        best = found
    return best[num_blocks][2]
