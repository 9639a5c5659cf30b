"""A rank of engine.train with an injected fault, `python -m tests.faults.sick run.json`: sick.json beside the
run file says which rank, at which step and how. Each gang has its fault once; drag lasts from that step on.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from atelier.engine import train
from atelier.engine.io.process import leave
from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.placement import local


def stop(member: RoleState) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def flip(member: RoleState) -> None:
    """Flip one bit of one weight, in the middle of its mantissa: rounding could lose the lowest."""
    weight = next(local(weight) for weight in member.weights.trainable().values() if local(weight).numel())
    with torch.no_grad():
        weight.view(torch.int32).view(-1)[0] ^= 1 << 12


def lose(member: RoleState) -> None:
    """Replace the weights that this rank holds by NaN."""
    with torch.no_grad():
        for weight in member.weights.trainable().values():
            local(weight).fill_(float("nan"))


def drag(member: RoleState) -> None:
    """Compute for a tenth of a second."""
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass


ILLS = {"stop": stop, "flip": flip, "lose": lose, "drag": drag}


def fall_ill(path: Path) -> None:
    sick = json.loads(path.with_name("sick.json").read_text())
    if int(os.environ["RANK"]) != sick["rank"]:
        return
    work, mark = RoleState.work, path.with_name("was-sick")

    def faulty(self: RoleState, batches: Any, clock: int, counts: Any) -> Any:
        step = clock + 1
        again = sick["ill"] == "drag" and step >= sick["step"]
        if again or (step == sick["step"] and not mark.exists()):
            mark.touch()
            ILLS[sick["ill"]](self)
        return work(self, batches, clock, counts)

    RoleState.work = faulty


def main(arguments: list[str]) -> int:
    fall_ill(Path(arguments[0]))
    return train.main(arguments)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
