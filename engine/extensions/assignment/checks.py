"""Check layouts that assign samples by cost. Torch-free."""

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
    """Raise ConfigError if micro-batches must be equal, if rows must stay together, or if a log of speeds
    does not fit the data ranks.
    """
    assigned = Assignment.of(layout)
    if assigned is None:
        raise ConfigError("parallel.speed_log", f"is given, but {PLACE} is rows", f"use {PLACE}=static")
    _check_layout(layout, assigned.value)
    for name, role in roles.items():
        model = role.model
        if isinstance(model, MixedBlocks) and model.num_experts and model.experts.router.competes:
            raise ConfigError(
                PLACE,
                f"{assigned.value} splits groups of rows whose tokens compete for experts of {name}; they"
                " must stay on one rank",
                "use another router, or assignment=rows",
            )
    if log := SpeedLog.of(layout):
        _check_log(log.value, layout.axes.data)


def _check_layout(layout: Parallel, kind: str) -> None:
    if layout.pipeline > 1:
        raise ConfigError(
            PLACE,
            f"{kind}, but pipeline={layout.pipeline} needs micro-batches of one shape",
            "pipeline=1, or assignment=rows",
        )
    if layout.roles:
        raise ConfigError(
            PLACE,
            f"{kind}, but {', '.join(layout.roles)} have their own layout",
            "give all roles one layout, or assignment=rows",
        )
    if kind == "measured" and layout.device == "cuda":
        refuse_measuring()
    if layout.compile == "block":
        raise ConfigError(
            PLACE,
            f"{kind}, but compile=block needs micro-batches of one shape",
            "compile=none, or assignment=rows",
        )


def refuse_measuring() -> NoReturn:
    """Refuse: on a GPU, a step's time is measured in the host thread and says nothing about the device."""
    raise ConfigError(
        PLACE,
        "measured is not supported on GPUs",
        "use assignment=static, with parallel.speed_log if GPUs differ",
    )


def _check_log(log: Sequence[Sequence[float]], data: int) -> None:
    """`data`: the number of data ranks."""
    for entry in log:
        is_step = bool(entry) and entry[0] >= 0 and entry[0] == int(entry[0])
        if not is_step or len(entry) != data + 1 or any(speed <= 0 for speed in entry[1:]):
            raise ConfigError(
                "parallel.speed_log",
                f"{list(entry)} must be a step and {data} speeds above 0, one per data rank",
                f"for example [[0, {', '.join(['1'] * data)}]]",
            )
    steps = [int(entry[0]) for entry in log]
    if steps != sorted(set(steps)):
        raise ConfigError("parallel.speed_log", f"its steps {steps} are not ascending", "sort them")
