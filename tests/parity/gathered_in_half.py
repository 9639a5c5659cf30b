"""A gang on CPUs that gathers sharded weights in 16 bits, as gangs on GPUs do:
`python -m tests.parity.gang tests.parity.gathered_in_half a/run.json ...`

A block that gets a residual stream of other than 32 bits, or weights of other than 16, ends the gang.
"""

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

from atelier.engine.model.transformer import Block, BlockOutput
from atelier.engine.parallel import shard
from tests.parity import gang

GATHERED = shard.gathering_policy("bf16", torch.device("cuda"))
forward = Block.forward


def _policy(*_: object) -> MixedPrecisionPolicy:
    return GATHERED


def _checked(block: Block, x_BTD: Tensor, *more: Tensor | None) -> BlockOutput:
    weight = next(block.attention.query.parameters())
    assert (x_BTD.dtype, weight.dtype) == (torch.float32, torch.bfloat16), (x_BTD.dtype, weight.dtype)
    output = forward(block, x_BTD, *more)
    assert output.hidden_BTD.dtype == torch.float32
    return output


def main(words: list[str]) -> int:
    shard.gathering_policy, Block.forward = _policy, _checked
    return gang.main(words)
