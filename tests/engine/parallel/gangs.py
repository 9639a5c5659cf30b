"""Run a script of this folder as a gang, with its layout and a folder for its results."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from atelier.engine.config.parallel import Parallel
from atelier.engine.parallel.gang import Gang, start_gang
from tests import forks


def gang(script: str, folder: Path, layout: Parallel, *words: str, per_node: int) -> list[dict[str, Any]]:
    """What every rank found, where each node has `per_node` of them."""
    folder.mkdir()
    given = (f"tests.engine.parallel.{script}", layout.model_dump_json(), str(folder), str(per_node), *words)
    forks.start_gang("tests.parity.gang", folder, layout.ranks, *given)
    return [torch.load(folder / f"{rank}.pt") for rank in range(layout.ranks)]


def rank(given: list[str], compute: Callable[..., dict[str, Any]]) -> int:
    """One rank of it: write what `compute` finds of the gang, its layout and the words."""
    layout, folder, per_node, *words = given
    os.environ["LOCAL_WORLD_SIZE"] = per_node
    chosen = Parallel.model_validate_json(layout)
    mine: Gang = start_gang(chosen)
    torch.save(compute(mine, chosen, *words), Path(folder) / f"{mine.rank}.pt")
    mine.close()
    return 0
