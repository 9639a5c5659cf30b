"""An Optuna study optimises in the direction of its metric, and prunes in it."""

import threading
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.study import StudyDirection

from atelier.engine.config.error import ConfigError
from atelier.flows.run.compose import RunConfig
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.sweep_ledger import Ledger, SweepInfo
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep.optuna import Search
from atelier.flows.sweep.session import Session
from atelier.infra.store.store import Store


def search_of(store: Store, metric: str | list[str], direction: str | list[str] = "", **more: Any) -> Search:
    def run_here(point: SweepPoint, sweep: str, stop: threading.Event) -> RunOutcome:
        raise AssertionError(f"#{point.number} runs")

    ledger = Ledger.begin(store, SweepInfo("pretrain", (), ("optim.lr=interval(0.1,0.2)",), "optuna"))
    session = Session("pretrain", ("optim.lr",), store, ledger, "atelier pretrain", run_here=run_here)
    settings = {"metric": metric, "direction": direction, "trials": 9, "seed": 1, "sampler": "random"}
    settings |= {"prune": True, "startup": 1, "only_if": None, **more}
    return Search(session, OverridesParser.create().parse_overrides(["optim.lr=interval(0.1,0.2)"]), settings)


@pytest.mark.parametrize(
    ("metric", "direction", "third_goes_on"),
    [
        ("", "", False),
        ("model.eval_loss", "", False),
        ("model.loss", "", False),
        ("model.loss", "maximize", True),
    ],
)
def test_a_point_is_pruned_in_the_direction_of_the_metric(
    tmp_path: Path, metric: str, direction: str, third_goes_on: bool
) -> None:
    search = search_of(Store(str(tmp_path)), metric, direction)
    nothing: Any = None
    frozen: RunConfig = nothing
    gone_on = []
    for number, value in enumerate([3.0, 3.5 if third_goes_on else 2.0, 4.0]):
        search.trials[number] = search.study.ask()
        point = SweepPoint(number, (), frozen, [], search.session.store)
        gone_on.append(search.look(point, 8, value))
        search.study.tell(search.trials[number], 0.5)
    assert gone_on == [True, True, third_goes_on]


def test_a_study_of_several_metrics_goes_in_the_direction_of_each(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    search = search_of(store, ["model.eval_loss", "scores.accuracy"])
    assert search.study.directions == [StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE]
    with pytest.raises(ConfigError, match=r"'model.params'.*hydra.sweeper.direction="):
        search_of(store, ["model.eval_loss", "model.params"])
    with pytest.raises(ConfigError, match="for each metric"):
        search_of(store, ["model.eval_loss", "scores.accuracy"], ["minimize"] * 3)


def test_the_same_search_by_another_metric_is_another_study(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for metric, direction in (("", StudyDirection.MINIMIZE), ("scores.accuracy", StudyDirection.MAXIMIZE)):
        study = search_of(store, metric).study
        assert study.direction == direction and not study.get_trials()
        study.tell(study.ask(), 0.5)
