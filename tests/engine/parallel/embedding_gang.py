"""One rank of a gang that splits an embedding by columns; run by test_embedding.py. Its results
go to a file: rows and gradients, those of one rank with all of the embedding, and what it sent.
"""

import torch
from torch import Tensor

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.model.gpt import Decoder
from atelier.engine.model.placement import local
from atelier.engine.parallel.embedding import ColumnEmbedding, split_embedding
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid
from tests.engine.parallel.gangs import rank

V, D, T = 50, 12, 8


def tokens_of(number: int) -> Tensor:
    """Ranks have unequal numbers of rows."""
    return torch.randint(V, (number + 1, T), generator=torch.Generator().manual_seed(number))


def model() -> Decoder:
    made = Decoder(GPT(num_layers=1, hidden=D, num_heads=2, vocab=V, tied=False)).double()
    with torch.no_grad():
        made.embed.weight.copy_(torch.randn(V, D, generator=torch.Generator().manual_seed(7)))
    return made


def compute(gang: Gang, layout: Parallel) -> dict[str, object]:
    grid = Grid(gang, layout.axes)
    split, plain = model(), model()
    split_embedding(split, grid, torch.float64, is_even=False)
    columns = split.get_submodule("embed")
    assert isinstance(columns, ColumnEmbedding)
    rows_BTD = columns(tokens_of(gang.rank))
    rows_BTD.pow(3).sum().backward()
    for number in range(gang.world):
        plain.embed(tokens_of(number)).pow(3).sum().backward()
    return {
        "rows": rows_BTD.detach(),
        "expected": plain.embed(tokens_of(gang.rank)).detach(),
        "gradient": local(columns.weight.grad),
        "whole": plain.embed.weight.grad,
        "held": local(columns.weight).shape,
    } | vars(columns.traffic)


def main(given: list[str]) -> int:
    return rank(given, compute)
