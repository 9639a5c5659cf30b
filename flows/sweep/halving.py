"""`hydra/sweeper=halving`: successive halving (Jamieson and Talwalkar, 1502.07943). All points are trained to
the first rung; the best continue from their checkpoints to the next rung, and so on to the end.

Settings (`hydra.sweeper.<...>`): `rungs`, their number including the end; `keep`, the share of points that
continues (a rung has `keep` times the steps of the next). Rungs are moved up to steps with a held-out loss
(train.eval_every). Points are compared by the sweep's metric at the rung.
"""

import math
from collections import deque
from typing import TypedDict, cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from atelier.engine.config.base import JsonObject
from atelier.engine.config.direction import is_held_out_loss, sign_of
from atelier.engine.config.error import ConfigError
from atelier.engine.config.train import Train
from atelier.flows.run.sweep_ledger import DONE
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep.executor import Ending
from atelier.flows.sweep.pruning import recorded, unrecorded
from atelier.flows.sweep.session import Session
from atelier.infra.report.held_out import WAY_OUT, differing

WITHOUT_RUNGS = "compare by <model>.eval_loss, or use hydra/sweeper=optuna"


class HalvingSettings(TypedDict):
    """`hydra.sweeper` of this sweeper, besides metric and direction."""

    keep: float
    rungs: int


def sweep(session: Session, words: list[Override], settings: JsonObject, width: int) -> list[float | None]:
    """Run all rungs. Returns the values of the points that were trained to the end. Raises ConfigError for
    invalid settings, a metric that training does not record, and losses of different held-out sets.
    """
    given = cast(HalvingSettings, settings)
    keep, number = float(given["keep"]), int(given["rungs"])
    if not 0 < keep < 1 or number < 2:
        raise ConfigError(
            "hydra.sweeper", f"keep={keep}, rungs={number}", "keep is between 0 and 1, rungs at least 2"
        )
    batches = BasicSweeper.split_arguments(words, None)
    points = session.enter([list(job) for batch in batches for job in batch])
    steps = rungs(points[0], keep, number)
    metric = session.metric_of(points[0])
    if problem := unrecorded(points[0], metric):
        raise ConfigError("hydra.sweeper.metric", problem, WITHOUT_RUNGS)
    session.say(f"{len(points)} points; rungs at steps {', '.join(map(str, steps))}")
    if session.is_dry:
        return []
    alive = points
    pairs = [(f"#{point.number}", point.looked_at) for point in alive]
    if is_held_out_loss(metric) and (problem := differing(pairs)):
        raise ConfigError("hydra/sweeper", problem, WAY_OUT)
    sign = sign_of(session.direction)
    for step in steps[:-1]:
        values = _to_rung(session, alive, step, width)
        many = max(1, math.ceil(keep * len(alive)))
        ranked = sorted((sign * values[p.number], p.number, p) for p in alive if p.number in values)
        alive = [point for _, _, point in ranked[:many]]
        session.say(f"rung {step}: {', '.join(f'#{p.number}' for p in alive) or 'none'} continue")
    left = session.left(alive)
    queue = deque(left)
    session.drive(lambda: queue.popleft() if queue else None, session.tell, None, width)
    return [session.value(point) for point in alive]


def rungs(point: SweepPoint, keep: float, number: int) -> list[int]:
    """The steps of the rungs, ascending; the last is where training ends. Raises ConfigError without
    train.eval_every, or when the rungs do not fit the measured steps.
    """
    train: Train | None = getattr(point.frozen.arguments, "train", None)
    every = train.eval_every if train is not None else 0
    if train is None or not every:
        raise ConfigError("train.eval_every", "halving compares points during training", "give e.g. 20")
    end = train.num_steps
    found = [math.ceil(end * keep**k / every) * every for k in range(number - 1, 0, -1)]
    if len({*found, end}) < number or found[-1] >= end:
        raise ConfigError(
            "hydra.sweeper.rungs",
            f"{number} rungs of {end} steps, measured every {every}",
            "measure more often, or give fewer",
        )
    return [*found, end]


def _to_rung(session: Session, points: list[SweepPoint], step: int, width: int) -> dict[int, float]:
    """Train the points to `step` and return the metric's values there; points that fail are left out."""

    def at_rung(point: SweepPoint) -> float | None:
        return recorded(point, session.metric_of(point)).get(step)

    queue = deque(session.left([point for point in points if at_rung(point) is None]))

    def tell(point: SweepPoint, ending: Ending) -> None:
        session.tell(point, ending)
        if ending.state == DONE and at_rung(point) is None:
            metric = session.metric_of(point)
            raise ConfigError("train.eval_every", f"point {point.number} has no {metric} at step {step}")

    session.drive(lambda: queue.popleft() if queue else None, tell, lambda _, at, __: at < step, width)
    return {point.number: value for point in points if (value := at_rung(point)) is not None}
