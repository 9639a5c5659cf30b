"""Titles of a run in the lists of Prefect and MLflow."""

import pytest

from atelier.engine.config.base import Spec
from atelier.engine.config.pool import Pool
from atelier.flows.run.compose import RunConfig, run_of
from atelier.infra.tracking.factory import TrackerSpec

ID = "20261125-004211-3fa2c1"


@pytest.mark.parametrize(
    ("overrides", "title"),
    [
        ((), "titan"),
        (("experiment=laptop", "pool=local", "tracker=none", "tracker.beside=[wandb]"), "titan laptop"),
        (
            ("train.seed=2", "experiment=tiny", "roles.teacher.optim.lr=0.01", "+role@roles.c=student"),
            "titan tiny: train.seed=2, optim.lr=0.01, role@roles.c=student",
        ),
        (("~roles.student_b",), "titan: ~roles.student_b"),
        (("~roles.teacher.objective.mlm",), "titan: ~objective.mlm"),
        (("data.source='a b'\n",), r"titan: data.source='a b'\n"),
    ],
)
def test_a_run_is_called_by_flow_experiment_and_what_else_was_given(
    overrides: tuple[str, ...], title: str
) -> None:
    frozen = RunConfig("titan", overrides, {}, Spec(), Pool(), TrackerSpec())
    assert frozen.title(ID) == f"{title} · {ID}"
    assert run_of(frozen.title(ID)) == ID


def test_a_long_title_keeps_the_runs_id() -> None:
    frozen = RunConfig("titan", (f"data.source={'x' * 500}",), {}, Spec(), Pool(), TrackerSpec())
    assert len(frozen.title(ID)) < 130 and run_of(frozen.title(ID)) == ID
    assert run_of(ID) == ID
