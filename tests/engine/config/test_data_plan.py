"""Data plans from identity, and what they refuse to guess."""

from typing import Any

import pytest

from atelier.engine.config.data_plan import DataPlan, check_versions, left_out_of, plan_from
from atelier.engine.config.error import DataError
from atelier.engine.config.mixture import (
    Phase,
    identity_of,
    read_in,
    resolve_phases,
    row_specs,
    sharing_of,
    streams,
)
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.train import Progressive
from atelier.engine.data.blend import shares
from tests.engine.trainings import role, train

PARENTS = {"tokens.a": "1", "tokens.b": "2", "tokens.c": "3", "tokenizer": "4"}
OBJECTIVES: list[dict[str, ObjectiveSpec]] = [
    {"lm": LM()},
    {"lm": LM(), "mlm": MLM(rate=0.2, rows=0.3)},
    {"document": DocumentLM(memory=8)},
]


def told(
    objective: dict[str, ObjectiveSpec], weights: dict[str, float], **more: Any
) -> tuple[DataPlan, DataPlan]:
    """The plan that is run, and the one that its identity tells."""
    how = train(100, seed=7, progressive=Progressive(steps=20))
    roles = {"model": role(objective=objective)}
    later = resolve_phases(weights, more.get("phases", {}), 100)
    sharing = sharing_of(more.get("assignment", "blocks"), more.get("epochs", {}))
    specs = row_specs(roles)
    run = DataPlan.of(
        how,
        streams(specs, weights, later, sharing.epochs),
        tuple(one.begin for one in later),
        sharing.assignment,
    )
    identity = {
        **how.as_identity(),
        **identity_of(specs, weights, later, sharing),
        "objective": {key: spec.as_identity() for key, spec in objective.items()},
    }
    check_versions(identity, identity["objective"], "t")
    read = read_in(weights, later)
    parents = {key: fp for key, fp in PARENTS.items() if key.partition(".")[2] in ("", *read)}
    return run, plan_from(identity, parents, identity["objective"], end=100, place="t")


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("weights", [{"a": 5.0}, {"a": 3.0, "b": 1.0, "c": 2.5}, {"a": 1.0, "b": 0.0}])
@pytest.mark.parametrize("with_phases", [False, True])
@pytest.mark.parametrize("how", [{}, {"assignment": "exact", "epochs": {"a": 1.5}}])
def test_identity_tells_the_plan_that_was_run_but_for_the_sum_of_the_weights(
    objective: dict[str, ObjectiveSpec], weights: dict[str, float], with_phases: bool, how: dict[str, Any]
) -> None:
    if len(weights) == 1 or objective.keys() == {"document"}:
        how = {}
    phases = {"end": Phase(begin=0.8, weights={"b": 4.0})} if with_phases and "b" in weights else {}
    run, found = told(objective, weights, phases=phases, **how)
    number = range(1 + len(run.phases))
    for phase in number:
        own, other = ([(one.weight, *one.later)[phase] for one in plan.streams] for plan in (run, found))
        assert shares(own) == shares(other)
    even = {"weight": 0.0, "later": (0.0,) * len(run.phases)}
    own, other = ([each.model_copy(update=even) for each in plan.streams] for plan in (run, found))
    assert own == other
    assert run.model_copy(update={"streams": ()}) == found.model_copy(update={"streams": ()})


def test_other_versions_and_shares_that_are_not_told_are_refused() -> None:
    lm = {"lm": {"kind": "lm"}}
    base = {"seed": 1, "global_batch": 8, "sequence": 64}
    with pytest.raises(DataError, match="does not tell the shares"):
        plan_from(base, PARENTS, lm, end=9, place="t")
    with pytest.raises(DataError, match="mixture is of version 1"):
        check_versions({"weights": {"a": 0.5, "b": 0.5}}, lm, "t")
    with pytest.raises(DataError, match="this code draws version 2"):
        check_versions({"mixture": {"version": 3}}, lm, "t")
    with pytest.raises(DataError, match="rows have versions 1"):
        check_versions({"num_labels": 8}, lm, "t")
    with pytest.raises(DataError, match="version 9 of lm"):
        check_versions({}, {"lm": {"kind": "lm", "version": 9}}, "t")


def test_steps_that_were_passed_over_end_with_the_bad_one() -> None:
    assert left_out_of({"rolled_back": [5, 30], "pass_over": 3}, 3, 100) == [3, 4, 27, 28, 29]
    assert left_out_of({}, 0, 100) == []
