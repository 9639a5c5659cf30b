"""One rank of a gang that splits an embedding by columns; run as a script by test_embedding.py. Its results
go to a file: rows and gradients, those of one rank with all of the embedding, and what it sent.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.io.process import leave
from atelier.engine.model.gpt import Decoder
from atelier.engine.model.placement import local
from atelier.engine.parallel.embedding import ColumnEmbedding, split_embedding
from atelier.engine.parallel.gang import Gang, start_gang
from atelier.engine.parallel.grid import Grid

V, D, T = 50, 12, 8


def tokens_of(rank: int) -> Tensor:
    """Ranks have unequal numbers of rows."""
    return torch.randint(V, (rank + 1, T), generator=torch.Generator().manual_seed(rank))


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
    for rank in range(gang.world):
        plain.embed(tokens_of(rank)).pow(3).sum().backward()
    return {
        "rows": rows_BTD.detach(),
        "expected": plain.embed(tokens_of(gang.rank)).detach(),
        "gradient": local(columns.weight.grad),
        "whole": plain.embed.weight.grad,
        "held": local(columns.weight).shape,
    } | vars(columns.traffic)


def main(layout: str, folder: Path) -> None:
    chosen = Parallel.model_validate_json(layout)
    gang = start_gang(chosen)
    torch.save(compute(gang, chosen), folder / f"{gang.rank}.pt")
    gang.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    leave(0)
