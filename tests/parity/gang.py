"""A gang that trains one run file after another: `python -m tests.parity.gang run-1.json run-2.json ...`,
with RANK and WORLD_SIZE set. Rank 0 prints the result of each.
"""

import json
import sys
from pathlib import Path

from atelier.engine.config.base import parse
from atelier.engine.config.run_file import RunFile
from atelier.engine.io.process import leave
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import start_gang
from atelier.engine.train import train


def main(paths: list[str]) -> int:
    runs = [parse(RunFile, json.loads(Path(path).read_bytes()), path) for path in paths]
    gang = start_gang(runs[0].layout)
    for run in runs:
        train(run, gang, StopRequest(Path(run.scratch)))
        gang.barrier()
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
