"""A gang that trains one run file after another: `python -m tests.parity.gang a/run.json b/run.json ...`,
with RANK and WORLD_SIZE set. If there is `a/then.json`, it is run too, from the first checkpoint of each role
of the first. `a/done` says that both have ended. Where the first word is the name of another module
instead, such as `tests.engine.checkpoint.gang`, that one's main is called with the other words.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

from atelier.engine.config.base import parse
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.process import leave
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import Gang, start_gang
from atelier.engine.train import train


def read(path: Path) -> RunFile:
    return parse(RunFile, json.loads(path.read_bytes()), str(path))


def go_back(folder: Path) -> None:
    """Leave the first checkpoint of each trajectory and no output."""
    for checkpoints in (folder / "trajectory").glob("*/checkpoints"):
        for step in sorted(checkpoints.glob("step-*"))[1:]:
            shutil.rmtree(step)
    shutil.rmtree(folder / "outputs")


def run_case(path: Path, gang: Gang) -> None:
    folder, then = path.parent, path.parent / "then.json"
    run = read(path)
    train(run, gang, StopRequest(Path(run.scratch)))
    gang.barrier()
    if then.exists():
        if gang.is_first:
            go_back(folder)
        gang.barrier()
        run = read(then)
        train(run, gang, StopRequest(Path(run.scratch)))
        gang.barrier()
    if gang.is_first:
        (folder / "done").touch()


def main(paths: list[str]) -> int:
    if "/" not in paths[0]:
        sys.stdout = os.fdopen(
            1, "w", closefd=False
        )  # the file of before a fork may have been of another kind
        return importlib.import_module(paths[0]).main(paths[1:])
    gang = start_gang(read(Path(paths[0])).layout)
    for path in paths:
        run_case(Path(path), gang)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
