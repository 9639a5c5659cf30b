"""Planned wall-clock time of a run."""

from pathlib import Path

import pytest

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import Provenance, Record
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.run.plan_document import PlanRow
from atelier.flows.run.wall_clock import RUN_S, TASK_S, seconds_of, wall_clock
from atelier.infra.dag import Node
from atelier.infra.store.run_manifest import Row
from atelier.infra.store.store import Store
from tests.stored_models import store_with


def node(name: str, *waits: str, ranks: int = 1) -> Node:
    return Node(name=name, task="score", products={}, waits=waits, ranks=ranks)


TEN = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 5.0}


@pytest.mark.parametrize(
    ("nodes", "slots", "seconds"),
    [
        ([node("a"), node("b"), node("c")], 3, 10),
        ([node("a"), node("b"), node("c")], 2, 20),
        ([node("a"), node("b", "a"), node("c", "b")], 3, 30),
        ([node("a", ranks=2), node("b"), node("d")], 2, 20),
        ([node("a"), node("b", ranks=2), node("c")], 2, 30),  # c does not overtake b
        ([node("a", ranks=4), node("d")], 2, 15),  # a gang takes at most what there is
        ([node("there"), node("a", "there"), node("d", "a")], 1, 15),  # the first is finished before
        ([node("a", ranks=0), node("b", ranks=0), node("c")], 1, 10),  # without a gang nothing is waited for
    ],
)
def test_nodes_run_side_by_side_as_far_as_slots_and_the_dag_allow(
    nodes: list[Node], slots: int, seconds: float
) -> None:
    mine = {name: s for name, s in TEN.items() if name in {one.name for one in nodes}}
    assert wall_clock(nodes, mine, Pool(slots=slots)) == seconds


def test_a_longer_flow_takes_longer_by_the_clock_and_more_than_its_longest_training(tmp_path: Path) -> None:
    plan = make_plan(compose("titan", ["experiment=tiny", "tracker=none"]), Store(str(tmp_path)))
    totals = plan.document()["totals"]
    longest = max(row["device_hours"] for row in plan.rows) * 3600
    assert totals["wall_s"] > RUN_S + longest
    quick = make_plan(compose("corpus", ["experiment=tiny", "tracker=none"]), Store(str(tmp_path)))
    assert RUN_S < quick.document()["totals"]["wall_s"] < totals["wall_s"]


class Kept(Store):
    """A store whose artifacts took twelve seconds each."""

    def find(self, kind: str, fingerprint: str) -> Record | None:
        times = Provenance(started=100.0, ended=112.0)
        return Record(
            kind=kind, name="", fingerprint=fingerprint, version=1, identity={}, parents={}, provenance=times
        )


def test_a_task_without_a_training_takes_what_it_took_or_what_is_known_of_its_kind(tmp_path: Path) -> None:
    store = Kept(str(tmp_path))
    assert seconds_of(node("score"), 0.0, [Row(fingerprint="f", kind="scores")], store) == 12
    assert seconds_of(node("score"), 0.0, [], store) == TASK_S["score"]
    assert seconds_of(node("score").model_copy(update={"task": "new"}), 0.0, [], store) == 0


def test_text_that_a_model_writes_is_planned_by_its_amount_and_refused_where_its_memory_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    store = store_with(tmp_path, GPT(num_layers=4, hidden=256, num_heads=4, vocab=512))

    def planned(*more: str) -> tuple[Plan, PlanRow]:
        words = ["experiment=tiny", "tracker=none", "data.written.by=guest", *more]
        plan = make_plan(compose("corpus", words), store)
        [row] = [row for row in plan.rows if row["task"] == "write"]
        return plan, row

    few, row = planned("data.written.documents=64")
    many, more = planned("data.written.documents=64000")
    longer, longest = planned("data.written.documents=64000", "data.written.tokens=512")
    assert more["flops"] == pytest.approx(1000 * row["flops"])
    assert many.wall_s - few.wall_s == pytest.approx(3600 * (more["device_hours"] - row["device_hours"]))
    assert many.wall_s > 2 * few.wall_s and longer.wall_s > 1.5 * many.wall_s
    assert row["memory_gb"] == more["memory_gb"] < longest["memory_gb"]
    assert row["params"] > 3e6 and row["memory_gb"] > 4 * row["params"] / 1e9
    assert not few.refusals
    refused, _ = planned("pool.memory_gb=0.4")
    [line] = [line for line in refused.refusals if line.startswith("write: ")]
    assert "GB for the model that writes, in float32, but this machine has 0.4; " in line
