"""A plan as `atelier plan --json` prints it: rows of artifacts, sums, and rows of pools."""

from collections.abc import Sequence
from typing import TypedDict

from atelier.engine.config.base import Json
from atelier.engine.plan.estimate import EstimateRow
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.reasons import Reason
from atelier.flows.run.site_rows import LinkRow, SiteRow
from atelier.infra.dag import Node


class LaterRow(TypedDict):
    """The steps of a training on a later layout."""

    step: int
    ranks: int
    step_s: float
    memory_gb: float
    device_hours: float


class PlanRow(EstimateRow):
    """One artifact of a plan, as `atelier plan --json` prints it, with the costs of the remaining work."""

    name: str
    task: str
    kind: str
    fingerprint: str
    state: str  # reuse, run, refused, or replay (finished, but trained again for students at other sites)
    reasons: list[Reason]
    from_step: int
    effective_time: float
    best_checkpoint_every: int
    layout: Json
    ranks: int  # of the steps before later layouts
    later: list[LaterRow]
    computed: str
    site: str  # the site that makes it; '' = this one
    pool: str  # the pool that makes it


def seconds_left(row: PlanRow) -> float:
    """Seconds of the remaining steps, those on later layouts included."""
    hours = row["device_hours"] - sum(span["device_hours"] for span in row["later"])
    return 3600 * (
        hours / max(1, row["ranks"]) + sum(span["device_hours"] / span["ranks"] for span in row["later"])
    )


class PlanTotals(TypedDict):
    """Sums over the artifacts that are made; memory is the largest."""

    tasks: int
    artifacts: int
    reuse: int
    run: int
    flops: float
    device_hours: float
    memory_gb: float
    wall_s: float


class PoolRow(TypedDict):
    """Tasks of one pool, and what the artifacts to make cost there."""

    pool: str
    device: str
    tasks: int
    artifacts: int
    reuse: int
    run: int
    memory_gb: float
    device_hours: float


class PlanDocument(TypedDict):
    """A plan as `atelier plan --json` prints it."""

    flow: str
    tasks: list[PlanRow]
    totals: PlanTotals
    refused: list[str]
    notes: list[str]
    pace: float
    sites: list[SiteRow]  # of a run over several sites
    links: list[LinkRow]
    pools: list[PoolRow]


def pool_rows(frozen: RunConfig, nodes: Sequence[Node], rows: Sequence[PlanRow]) -> list[PoolRow]:
    """A row for each pool with tasks of this site, in the order of the DAG."""
    tasks: dict[str, list[str]] = {}
    for node in nodes:
        tasks.setdefault(frozen.pool_name(node.task), []).append(node.task)
    found: list[PoolRow] = []
    for name, mine in tasks.items():
        here = [row for row in rows if row["pool"] == name and not row["site"]]
        made = [row for row in here if row["state"] != "reuse"]
        found.append(
            {
                "pool": name,
                "device": frozen.pool_of(mine[0]).gpu,
                "tasks": len(mine),
                "artifacts": len(here),
                "reuse": len(here) - len(made),
                "run": len(made),
                "memory_gb": max((row["memory_gb"] for row in made), default=0.0),
                "device_hours": round(sum(row["device_hours"] for row in made), 6),
            }
        )
    return found
