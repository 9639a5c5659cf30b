"""All that `atelier plan` says of a flow: the plan, what finished trainings took, other layouts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NotRequired, TypedDict

from atelier.engine.io.survey import SurveyRow
from atelier.engine.plan.estimate import EstimateRow
from atelier.flows.run.auto import vocab_of
from atelier.flows.run.catalog import check_flow
from atelier.flows.run.compose import RunConfig, compose
from atelier.flows.run.measured import MeasuredRow, measured
from atelier.flows.run.memory_fit import TRAINED, layouts, words
from atelier.flows.run.other_sites import agents_of, other_sites
from atelier.flows.run.plan import Plan, PlanDocument, PlanRow, PlanTotals, make_plan
from atelier.infra.store.store import Store


class LayoutRow(EstimateRow):
    """A layout of the search and its cost."""

    words: str
    mesh: str
    micro_batch: int
    parts: dict[str, dict[str, float]]


class OutRow(TypedDict):
    """A mesh that is impossible, and why."""

    mesh: str
    why: str


class TaskLayouts(TypedDict):
    """What `atelier plan --search` finds for one training."""

    task: str
    layouts: list[LayoutRow]
    out: list[OutRow]


class PlannedDocument(PlanDocument):
    """A plan and what was measured, as `atelier plan --json` prints them; `source`: of a flow that takes a
    model from outside, what of it comes in.
    """

    measured: list[MeasuredRow]
    source: NotRequired[list[SurveyRow]]


class SearchedDocument(PlannedDocument):
    """As `atelier plan --search --json` prints it."""

    search: list[TaskLayouts]


@dataclass(frozen=True)
class PlanResult:
    """A plan: `tasks` has a row per artifact (state, reasons, params, memory, time), `totals` their sums;
    `refused` says why the run would be refused, and is empty when it would not be. `measured` compares with
    finished trainings; `search` has other layouts, where they were asked for.
    """

    plan: Plan
    measured: list[MeasuredRow]
    search: list[TaskLayouts] | None = None

    @property
    def source(self) -> list[SurveyRow] | None:
        """Of a flow that takes a model from outside: what of it comes in."""
        return self.plan.source

    @property
    def flow(self) -> str:
        return self.plan.flow

    @property
    def tasks(self) -> list[PlanRow]:
        """A row per artifact, as in `atelier plan --json`."""
        return self.plan.rows

    @property
    def totals(self) -> PlanTotals:
        """Sums over what would be made; `wall_s` is by the clock."""
        return self.plan.document()["totals"]

    @property
    def refused(self) -> list[str]:
        return self.plan.refusals

    @property
    def notes(self) -> list[str]:
        return self.plan.notes

    def document(self) -> PlannedDocument | SearchedDocument:
        """What `atelier plan --json` prints."""
        found: PlannedDocument = {**self.plan.document(), "measured": self.measured}
        if self.source is not None:
            found["source"] = self.source
        if self.search is None:
            return found
        searched: SearchedDocument = {**found, "search": self.search}
        return searched


def planned(flow: str, overrides: Sequence[str], store: Store, *, search: bool = False) -> PlanResult:
    """Plan a flow. Raises ConfigError for an unknown flow and invalid overrides; other refusals are in the
    result.
    """
    check_flow(flow, "atelier plan")
    frozen = compose(flow, list(overrides))
    plan = _over_sites(frozen, store) if frozen.sites.names else make_plan(frozen, store)
    found = search_layouts(plan, frozen) if search else None
    return PlanResult(plan, measured(plan, store), found)


def _over_sites(frozen: RunConfig, store: Store) -> Plan:
    """The plan of all sites: each is asked for its part."""
    with agents_of(frozen.sites, store.root):
        plan = make_plan(frozen, store)
        return plan if plan.refusals else other_sites(frozen, plan, store, str(time.time_ns())).planned(plan)


def search_layouts(plan: Plan, frozen: RunConfig) -> list[TaskLayouts]:
    """For each training the layouts of its largest role, the fastest first, and why the others are out."""
    vocab = vocab_of(frozen.arguments)
    found: list[TaskLayouts] = []
    for node in plan.nodes:
        if node.task not in TRAINED or not vocab:
            continue
        options, out = layouts(node, frozen.pool, vocab)
        rows: list[LayoutRow] = [
            {
                "words": words(one),
                "mesh": one.mesh,
                "micro_batch": one.micro_batch,
                **one.estimate.row(),
                "parts": one.estimate.parts(),
            }
            for one in options
        ]
        reasons: list[OutRow] = [{"mesh": one.mesh, "why": one.why} for one in out]
        found.append({"task": node.name, "layouts": rows, "out": reasons})
    return found
