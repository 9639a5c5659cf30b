"""The best is the highest or the lowest by the metric's declaration, wherever a best is chosen."""

import threading
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.direction import declared
from atelier.engine.config.error import ConfigError
from atelier.flows.cli.main import run
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.sweep_ledger import DONE, Ledger, PointEntry, SweepInfo
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep.pick import choose
from atelier.flows.sweep.report import content_of
from atelier.flows.sweep.session import Session
from atelier.infra.report.sweep_report import to_markdown
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store
from tests.infra.records import Shelf

TOKENS = {"tokens.main": "ab" * 32}


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Store(str(tmp_path / "store")))


def session_of(shelf: Shelf, key: str = "train.seed") -> Session:
    """A sweep of which no point is to run."""

    def run_here(point: SweepPoint, sweep: str, stop: threading.Event) -> RunOutcome:
        raise AssertionError(f"#{point.number} runs")

    ledger = Ledger.begin(shelf.store, SweepInfo("pretrain", (), (key,), "grid"))
    return Session("pretrain", (key,), shelf.store, ledger, "atelier pretrain", run_here=run_here)


def made(shelf: Shelf, number: int, **summary: Any) -> list[dict[str, str]]:
    """A model and its scores, whose summary this is, as rows of a manifest."""
    seed = int(shelf.clock)  # no two are alike
    segment = shelf.trajectory("model", TOKENS, seed=seed)
    model = shelf.model("model", segment, TOKENS, step=400, run=f"run-{number}", eval_loss=3.0 - number)
    scores = shelf.publish("scores", "scores", {"model": model.fingerprint}, summary=summary, seed=seed)
    return [
        {
            "name": one.kind,
            "key": one.kind,
            "kind": one.kind,
            "model": one.kind,
            "fingerprint": one.fingerprint,
        }
        for one in (model, scores)
    ]


def swept(
    shelf: Shelf, metric: str, values: list[float], *, given: str = "", key: str = "train.seed"
) -> Session:
    """A finished sweep by this metric."""
    session = session_of(shelf, key)
    session.compare(metric, given)
    word = metric.rpartition(".")[2]
    for number, value in enumerate(values):
        entry = PointEntry(number, f"{number:064x}", [f"{key}={number}"], state=DONE)
        entry.made = made(shelf, number, **{word: value})
        session.ledger.write(entry)
    session.revalue()
    return session


@pytest.mark.parametrize(
    ("metric", "order", "best"),
    [
        ("scores.accuracy_normalised", "highest", 1),
        ("scores.accuracy", "highest", 1),
        ("scores.bytes_per_token", "highest", 1),
        ("scores.bits_per_byte", "lowest", 0),
        ("scores.loss", "lowest", 0),
    ],
)
def test_sweep_report_pick_and_alias_choose_the_point_that_the_metric_declares_better(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, metric: str, order: str, best: int
) -> None:
    session = swept(shelf, metric, [0.2, 0.9, 0.4])
    found = session.best()
    assert found is not None and found.number == best
    assert content_of(session).best == best
    picked = choose(shelf.store, [session.ledger.id], "")
    assert (picked.best.label, picked.order) == (f"#{best}", order)
    monkeypatch.setenv("ATELIER_ROOT", shelf.store.root)
    assert run(["pick", session.ledger.id, "--by", metric]) == 0
    assert shelf.store.resolve("model@best").fingerprint == found.made[0]["fingerprint"]


def test_a_metric_without_a_direction_is_refused_until_one_is_given(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"'scores.beauty'.*hydra.sweeper.direction=maximize or minimize"):
        session_of(shelf).compare("scores.beauty", "")
    session = swept(shelf, "scores.beauty", [1.0, 3.0, 2.0], given="maximize")
    best = session.best()
    assert best is not None and best.number == 1
    assert choose(shelf.store, [session.ledger.id], "").best.label == "#1"  # the ledger keeps what was given
    runs(shelf, beauty=[1.0, 3.0])
    monkeypatch.setenv("ATELIER_ROOT", shelf.store.root)
    words = ["pick", "run-0", "run-1", "--by", "scores.beauty"]
    assert run(words) == 2
    said = capsys.readouterr()
    assert "give --highest or --lowest" in said.err and said.err.count("\n") == 1
    assert run([*words, "--highest"]) == 0 and "best     run-1: highest" in capsys.readouterr().out
    assert run([*words, "--lowest"]) == 0 and "best     run-0: lowest" in capsys.readouterr().out


def runs(shelf: Shelf, **words: list[float]) -> None:
    """Finished runs, whose scores have these values."""
    [(word, values)] = words.items()
    for number, value in enumerate(values):
        tasks = made(shelf, 100 + number, **{word: value})
        about: dict[str, Any] = {"id": f"run-{number}", "flow": "score", "command": "atelier score"}
        about |= {"status": "finished", "started": float(number), "tasks": tasks}
        write_manifest(shelf.store, RunManifest.model_validate(about))


def test_the_same_sweep_by_another_metric_compares_all_its_points_by_that(shelf: Shelf) -> None:
    session = swept(shelf, "scores.accuracy", [0.2, 0.9, 0.4])
    again = session_of(shelf)
    again.compare("model.eval_loss", "")
    again.revalue()
    best = again.best()
    assert best is not None and (best.number, best.value, best.metric) == (2, 1.0, "model.eval_loss")
    picked = choose(shelf.store, [session.ledger.id], "")
    assert (picked.metric, picked.best.label) == ("model.eval_loss", "#2")


def test_two_sweeps_are_picked_from_together_with_every_point_of_both(shelf: Shelf) -> None:
    one = swept(shelf, "scores.accuracy", [0.2, 0.9, 0.4])
    other = swept(shelf, "scores.accuracy", [0.1, 0.3], key="optim.lr")
    picked = choose(shelf.store, [other.ledger.id, one.ledger.id], "")
    assert len(picked.candidates) == 5 and picked.best.label == f"{one.ledger.id} #1"


def test_sweeps_that_were_compared_differently_are_not_picked_from_together(shelf: Shelf) -> None:
    one = swept(shelf, "scores.accuracy", [0.2, 0.9])
    other = swept(shelf, "scores.loss", [0.1, 0.3], key="optim.lr")
    with pytest.raises(ConfigError, match=r"by scores.accuracy, .* by scores.loss; give e.g. --by"):
        choose(shelf.store, [one.ledger.id, other.ledger.id], "")
    third = swept(shelf, "scores.accuracy", [0.1, 0.3], given="minimize", key="train.steps")
    with pytest.raises(ConfigError, match=r"by its highest and .* by its lowest; give --highest or --lowest"):
        choose(shelf.store, [one.ledger.id, third.ledger.id], "")


def test_a_report_says_which_values_are_better(shelf: Shelf) -> None:
    session = swept(shelf, "scores.accuracy", [0.2, 0.9, 0.4])
    assert "- compared by scores.accuracy: higher is better" in to_markdown(content_of(session))


def test_metrics_of_curves_have_directions_too() -> None:
    assert (
        declared("eval/loss") == declared("eval/objective/lm") == declared("eval/source/main") == "minimize"
    )
    assert declared("objective/accuracy/reorder") == declared("eval/objective/accuracy/reorder") == "maximize"
    assert declared("model.params") is declared("lr") is None
