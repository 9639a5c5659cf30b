"""A gang of four that orthogonalises split matrices: `python -m tests.parity.muon folder`. Each rank writes
how many it orthogonalised itself, and how far results are from those of one process.
"""

import json
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from atelier.engine.config.parallel import Parallel
from atelier.engine.optim import muon
from atelier.engine.parallel.gang import start_gang

SHAPES = [(8, 8), (16, 8), (8, 16), (12, 6), (6, 12), (8, 8), (4, 20), (10, 10)]


def matrices() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def main(arguments: list[str]) -> int:
    gang = start_gang(Parallel(shard=4, threads=1, device="cpu"))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    split = [
        distribute_tensor(each, mesh, [Shard(0), Shard(number % 2)]) for number, each in enumerate(matrices())
    ]
    done, orthogonal = [], muon.orthogonal

    def counted(matrix: Tensor, iterations: int) -> Tensor:
        done.append(matrix.shape)
        return orthogonal(matrix, iterations)

    muon.orthogonal = counted
    found = list(muon.orthogonal_each(split, lambda weight: weight, 5))
    apart = max(
        float((turned.full_tensor() - orthogonal(each, 5)).abs().max())
        for turned, each in zip(found, matrices(), strict=True)
    )
    (Path(arguments[0]) / f"{gang.rank}.json").write_text(json.dumps({"done": len(done), "apart": apart}))
    return 0
