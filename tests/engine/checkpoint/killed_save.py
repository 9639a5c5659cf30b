"""Save into a folder, and end once the tensors are written; run by test_single.py."""

import os
from typing import Any

import torch

from atelier.engine.checkpoint import writer
from atelier.engine.checkpoint.collective_call import SingleRank


def main(given: list[str]) -> int:
    write = writer.write_tensors

    def killed(*each: Any) -> Any:
        write(*each)
        os._exit(9)

    writer.write_tensors = killed
    url, state = f"{given[0]}/step-00000001", {"w": torch.ones(9)}
    writer.save_async(url, state, step=1, trajectory="a", gang=SingleRank()).wait()
    return 0
