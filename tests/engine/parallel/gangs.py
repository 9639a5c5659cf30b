"""Run a module of this folder as a gang, with its layout and a folder for its results."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from atelier.engine.config.parallel import Parallel


def gang(module: str, folder: Path, layout: Parallel, *words: str, per_node: int) -> list[dict[str, Any]]:
    """What every rank found, where each node has `per_node` of them."""
    folder.mkdir()
    env = os.environ | {
        "ATELIER_RENDEZVOUS": f"file://{folder / 'meeting'}", "WORLD_SIZE": str(layout.ranks),
        "LOCAL_WORLD_SIZE": str(per_node),
    }  # fmt: skip
    command = [sys.executable, "-m", module, layout.model_dump_json(), str(folder), *words]
    ranks = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(layout.ranks)
    ]
    errors = [process.communicate(timeout=120)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * layout.ranks, errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(layout.ranks)]
