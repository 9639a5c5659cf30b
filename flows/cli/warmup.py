"""Warm-ups beside the steps that there are for them: who gives one that does not fit is refused; where a run
is shorter than what the configuration was written for, its plan says so.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from atelier.engine.spec.data import Finetune
from atelier.engine.spec.role import Role
from atelier.engine.spec.schedule import Schedule
from atelier.engine.spec.train import Train
from atelier.flows.cli.fitting import TRAINED
from atelier.flows.cli.layout import trained
from atelier.infra.dag import Node


def check_warmups(arguments: Any, overrides: Iterable[str]) -> None:
    """ConfigError for a warm-up that one of the overrides gives, and that does not fit."""
    given = list(overrides)
    for place, schedule, start, end in _schedules(arguments):
        if any(_gives(text, f"{place}.warmup") for text in given):
            schedule.check(start, end, place)


def _schedules(arguments: Any) -> Iterator[tuple[str, Schedule, int, int]]:
    """Every schedule of a flow with its place, its first step and its end."""
    train: Train | None = getattr(arguments, "train", None)
    for name, role in trained(arguments).items():
        if train is not None:
            place = f"roles.{name}.optim.schedule" if name else "optim.schedule"
            yield place, role.optim.schedule, int(role.start), role.last(train.num_steps)
    tuning: Finetune | None = getattr(arguments, "finetune", None)
    if tuning is not None:
        yield "finetune.optim.schedule", tuning.optim.schedule, 0, tuning.num_steps


def _gives(text: str, key: str) -> bool:
    """Whether an override gives the key, by its name or inside a section."""
    name, _, value = text.lstrip("+").partition("=")
    return name == key or (key.startswith(f"{name}.") and "warmup" in value)


def short_of(nodes: Iterable[Node]) -> list[str]:
    """The roles whose peak learning rate is never reached, each with why."""
    found = []
    for node in nodes:
        if node.task not in TRAINED:
            continue
        settings = Train.model_validate(node.config["train"])
        for name, document in node.config["roles"].items():
            role = Role.model_validate(document)
            problem, _ = role.optim.schedule.misfit(int(role.start), role.last(settings.num_steps))
            if problem:
                found.append(f"{node.name}.{name} ({problem})")
    return found
