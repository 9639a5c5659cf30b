"""A gang that trains the model which tests/parity/contributed adds to a copy of this checkout, case by case:
`python -m tests.parity.pairs folder inputs.json cases.json`, with RANK and WORLD_SIZE set and the copy on
PYTHONPATH. A case: {layout, folder (its name), steps, keep, trainable}.
"""

import json
import sys
from pathlib import Path
from typing import Any

from atelier.engine.config.base import parse
from atelier.engine.config.optim.adamw import AdamW
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Training
from atelier.engine.config.schedule import Schedule
from atelier.engine.io.process import leave
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import start_gang
from atelier.engine.train import train as train_run
from tests.engine.row_inputs import VOCAB
from tests.engine.trainings import TrainingSetup, train

SHAPE = {
    "kind": "pair", "num_layers": 4, "hidden": 32, "num_heads": 4, "ffn": 64, "dropout": 0.1, "vocab": VOCAB,
}  # fmt: skip
STEPS = 8


def training(setup: TrainingSetup, steps: int, trainable: dict[str, Any], **how: Any) -> Training:
    document = {"model": SHAPE, "objective": {"rejoin": {"kind": "rejoin", "before": 8}}}
    optim = AdamW(lr=1e-2, schedule=Schedule(kind="constant", warmup=2)).model_dump(mode="json")
    role = parse(Role, document | {"optim": optim, "trainable": trainable}, "roles.pair")
    defaults: dict[str, Any] = {"precision": "fp64", "global_batch": 8, "micro_batch": 2}
    return setup.training({"pair": role}, train(steps, **(defaults | how)))


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    inputs, cases = (json.loads(Path(one).read_text()) for one in arguments[1:])
    gang = start_gang(parse(Parallel, next(iter(cases.values()))["layout"], "layout"))
    for name, case in cases.items():
        setup = TrainingSetup(folder / case.get("folder", name), inputs)
        more = {"keep": True} if case.get("keep") else {}
        layout = parse(Parallel, case["layout"], name)
        asked = training(setup, case.get("steps", STEPS), case.get("trainable", {}), **more)
        run = setup.run_file(asked, layout=layout)
        train_run(run, gang, StopRequest(Path(run.scratch)))
        gang.barrier()
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
