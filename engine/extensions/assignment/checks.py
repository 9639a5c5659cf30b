"""Checks of layouts that assign samples by cost. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.extensions.assignment.config.parallel.assignment import Assignment
from atelier.engine.extensions.assignment.config.parallel.speed_log import SpeedLog

PLACE = "parallel.assignment"


def check(layout: Parallel, roles: Mapping[str, Role], train: Train, *, prefix: str, section: str) -> None:
    """Raise ConfigError where micro-batches have to be alike, or rows to lie together, and for a log of
    speeds that does not fit the data ranks.
    """
    assigned = Assignment.of(layout)
    if assigned is None:
        raise ConfigError("parallel.speed_log", f"is given, but {PLACE} is rows", f"{PLACE}=static")
    _check_layout(layout, assigned.value)
    for name, role in roles.items():
        model = role.model
        if isinstance(model, MixedBlocks) and model.num_experts and model.experts.router.competes:
            raise ConfigError(
                PLACE,
                f"{assigned.value}, but the tokens of {name} compete for experts in groups of rows, which it "
                "tears apart",
                "another router, or assignment=rows",
            )
    if log := SpeedLog.of(layout):
        _check_log(log.value, layout.axes.data)


def _check_layout(layout: Parallel, kind: str) -> None:
    if layout.pipeline > 1:
        raise ConfigError(
            PLACE,
            f"{kind}, but the stages of pipeline={layout.pipeline} pass on micro-batches of one shape",
            "pipeline=1, or assignment=rows",
        )
    if layout.roles:
        raise ConfigError(
            PLACE,
            f"{kind}, but {', '.join(layout.roles)} split micro-batches in a layout of their own",
            "give all roles one layout, or assignment=rows",
        )
    if kind == "measured" and layout.device == "cuda":
        refuse_measuring()
    if layout.compile == "block":
        raise ConfigError(
            PLACE,
            f"{kind}, but compile=block compiles blocks for one shape of micro-batches",
            "compile=none, or assignment=rows",
        )


def refuse_measuring() -> NoReturn:
    """A step on a GPU is measured by what its host thread does, which says nothing of the device."""
    raise ConfigError(
        PLACE,
        "measured, which is not built for GPUs",
        "assignment=static, with parallel.speed_log if they differ",
    )


def _check_log(log: Sequence[Sequence[float]], data: int) -> None:
    """`data`: the number of data ranks."""
    for entry in log:
        is_step = bool(entry) and entry[0] >= 0 and entry[0] == int(entry[0])
        if not is_step or len(entry) != data + 1 or any(speed <= 0 for speed in entry[1:]):
            raise ConfigError(
                "parallel.speed_log",
                f"{list(entry)} is no step with a speed above 0 for each of {data} data ranks",
                f"[[0, {', '.join(['1'] * data)}]] is",
            )
    steps = [int(entry[0]) for entry in log]
    if steps != sorted(set(steps)):
        raise ConfigError("parallel.speed_log", f"its steps {steps} do not rise", "put them in order")
