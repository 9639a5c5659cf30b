"""Collect the output of `atelier plan`: the plan, measurements of finished trainings, other layouts."""

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
from atelier.flows.run.memory_fit import TRAINED, known_vocab, layouts, words
from atelier.flows.run.other_sites import agents_of, other_sites
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.plan_document import PlanDocument, PlanRow, PlanTotals
from atelier.infra.store.store import Store


class LayoutRow(EstimateRow):
    """A layout of the search and its cost."""

    words: str
    mesh: str
    micro_batch: int
    parts: dict[str, dict[str, float]]


class OutRow(TypedDict):
    """An impossible mesh, and the reason."""

    mesh: str
    why: str


class TaskLayouts(TypedDict):
    """Result of `atelier plan --search` for one training."""

    task: str
    layouts: list[LayoutRow]
    out: list[OutRow]


class PlannedDocument(PlanDocument):
    """A plan and measurements, as `atelier plan --json` prints them; `source`: for flows that import a model,
    the parts of it.
    """

    measured: list[MeasuredRow]
    source: NotRequired[list[SurveyRow]]


class SearchedDocument(PlannedDocument):
    """The output of `atelier plan --search --json`."""

    search: list[TaskLayouts]


@dataclass(frozen=True)
class PlanResult:
    """A plan: `tasks` has a row for each artifact (state, reasons, params, memory, time), `totals` their
    sums; `refused` has the reasons of a refusal, or is empty. `measured` compares with finished trainings;
    `search` has other layouts, if requested.
    """

    plan: Plan
    measured: list[MeasuredRow]
    search: list[TaskLayouts] | None = None

    @property
    def source(self) -> list[SurveyRow] | None:
        """For flows that import a model: its parts, and whether each can be imported."""
        return self.plan.source

    @property
    def flow(self) -> str:
        return self.plan.flow

    @property
    def tasks(self) -> list[PlanRow]:
        """A row for each artifact, as in `atelier plan --json`."""
        return self.plan.rows

    @property
    def totals(self) -> PlanTotals:
        """Sums over the artifacts to make; `wall_s` is wall-clock time."""
        return self.plan.document()["totals"]

    @property
    def refused(self) -> list[str]:
        return self.plan.refusals

    @property
    def notes(self) -> list[str]:
        return self.plan.notes

    def document(self) -> PlannedDocument | SearchedDocument:
        """The output of `atelier plan --json`."""
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
    found = search_layouts(plan, frozen, store) if search else None
    return PlanResult(plan, measured(plan, store), found)


def _over_sites(frozen: RunConfig, store: Store) -> Plan:
    """The plan of all sites; each site plans its part."""
    with agents_of(frozen.sites, store.root):
        plan = make_plan(frozen, store)
        return plan if plan.refusals else other_sites(frozen, plan, store, str(time.time_ns())).planned(plan)


def search_layouts(plan: Plan, frozen: RunConfig, store: Store) -> list[TaskLayouts]:
    """For each training: layouts of its largest role, the fastest first, and rejected ones with reasons."""
    found: list[TaskLayouts] = []
    for node in plan.nodes:
        vocab = vocab_of(frozen.arguments) or known_vocab(node, store)
        if node.task not in TRAINED or not vocab:
            continue
        options, out = layouts(node, frozen.pool_of(node.task), vocab)
        rows: list[LayoutRow] = [
            {
                "words": words(one, node),
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
