"""A gang that crosses layouts: `python -m tests.parity.reshard plan.json`. Every entry names a run file;
before it runs, a trajectory may be copied, and its checkpoint loaded and saved again in the run's own layout.
"""

import json
import shutil
import sys
from pathlib import Path

from atelier.engine.checkpoint.folder import address
from atelier.engine.checkpoint.reader import load
from atelier.engine.checkpoint.writer import save_async
from atelier.engine.config.base import parse
from atelier.engine.config.run_file import RunFile, Trainings
from atelier.engine.io.process import leave
from atelier.engine.loop.build import BuildContext, build_member
from atelier.engine.loop.resume import checkpoints
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import Gang, start_gang
from atelier.engine.train import train


def save_again(run: RunFile, gang: Gang, step: int, folder: Path) -> None:
    """Every role's checkpoint of `step`, loaded in the run's layout and saved in it below `folder`."""
    (training,) = parse(Trainings, run.config, "config").trainings
    training_setup = BuildContext(gang=gang, layout=run.layout, inputs={}, scratch=Path(run.scratch))
    for name, spec in training.members.items():
        member = build_member(name, spec, training=training, build_context=training_setup)
        segment = member.segment(step)
        state = member.state()
        place = address(checkpoints(segment), step)
        values = load(place, state, step=step, trajectory=segment.fingerprint, gang=gang.aside)
        member.restore(values, step)
        target = address(str(folder / name), step)
        save_async(target, member.state(), step=step, trajectory=segment.fingerprint, gang=gang.aside).wait()


def main(arguments: list[str]) -> int:
    (path,) = arguments
    plan = json.loads(Path(path).read_text())
    runs = [parse(RunFile, json.loads(Path(entry["run"]).read_bytes()), path) for entry in plan]
    gang = start_gang(runs[0].layout)
    for entry, run in zip(plan, runs, strict=True):
        if entry["from"]:
            if gang.is_first:
                shutil.copytree(entry["from"], entry["to"])
            gang.barrier()
            save_again(run, gang, entry["step"], Path(entry["again"]))
        train(run, gang, StopRequest(Path(run.scratch)))
        gang.barrier()
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
