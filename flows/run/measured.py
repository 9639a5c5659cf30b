"""Compare planned and measured steps of finished trainings, for `atelier plan`, and store them to calibrate
later plans.
"""

import time

from atelier.engine.config.device import is_device
from atelier.engine.config.pool import Pool
from atelier.flows.run.plan import Plan
from atelier.flows.run.plan_document import PlanRow
from atelier.infra.calibration.history import (
    MeasuredSteps,
    Measurement,
    StepsRow,
    measure,
    record_measurement,
)
from atelier.infra.dag import Node
from atelier.infra.store.store import Store
from atelier.tasks.train import unpack


class MeasuredRow(StepsRow):
    """Planned and measured cost of a finished training."""

    task: str
    planned_step_s: float
    planned_memory_gb: float


def measured(plan: Plan, store: Store) -> list[MeasuredRow]:
    """Planned and measured step time and memory of every finished training. Roles that train together share a
    step.
    """
    found = []
    for node in plan.nodes:
        seen = _seen(node, store)
        if seen is None or any(row["state"] != "reuse" for row in rows_of(plan, node)):
            continue
        row: MeasuredRow = {
            "task": node.name,
            "planned_step_s": sum(row["step_s"] for row in rows_of(plan, node)),
            "planned_memory_gb": sum(row["memory_gb"] for row in rows_of(plan, node)),
            **seen.row(),
        }
        found.append(row)
    return found


def record_measurements(plan: Plan, made: list[str], store: Store, pool: Pool) -> None:
    """Store planned and measured step time of the trainings in `made`. Trainings on another device than the
    pool's are left out.
    """
    for node in plan.nodes:
        planned_s = sum(row["step_s"] for row in rows_of(plan, node)) / plan.pace
        seen = _seen(node, store) if node.name in made and planned_s else None
        if seen is not None and is_device(pool.gpu, seen.device):
            first = next(iter(node.products.values()))
            measurement = Measurement(node.name, planned_s, seen.step_s, time.time(), seen.device)
            record_measurement(store, pool.name, first.parents["trajectory"], measurement)


def rows_of(plan: Plan, node: Node) -> list[PlanRow]:
    """The plan's rows for a node's products."""
    mine = {product.fingerprint for product in node.products.values()}
    return [row for row in plan.rows if row["task"] == node.task and row["fingerprint"] in mine]


def _seen(node: Node, store: Store) -> MeasuredSteps | None:
    """The training's measured steps, from its first role's metrics."""
    if node.task != "train":
        return None
    _, _, parts = unpack(node)
    first = parts[next(iter(node.products))]
    return measure([store.address("trajectory", part.fingerprint) for part in first])
