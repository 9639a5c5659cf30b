"""Losses of different held-out sets are not ranked: by pick, by a sweep, by its samplers."""

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.evaluation import held_out_name, scored_name
from atelier.engine.config.record import Record
from atelier.flows.cli.main import run
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.sweep_ledger import DONE, Ledger, PointEntry, SweepInfo
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep.pick import choose
from atelier.flows.sweep.session import Session
from atelier.infra.report.held_out import UNKNOWN, differing, held_out_of
from atelier.infra.store.run_manifest import RunManifest, write_manifest
from atelier.infra.store.store import Store
from tests.infra.records import Shelf

TOKENS = {"tokens.main": "ab" * 32}
SETS = [held_out_name({"ab" * 32: count}, sequence) for count in (16, 64) for sequence in (32, 128)]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(Store(str(tmp_path / "store")))


def model(shelf: Shelf, number: int, loss: float, **summary: Any) -> Record:
    """A run's model with this held-out loss."""
    segment = shelf.trajectory("model", TOKENS, seed=number)
    record = shelf.model("model", segment, TOKENS, step=400, run=f"run-{number}", eval_loss=loss, **summary)
    rows = [{"name": "train", "key": "model", "kind": "model", "model": "model"}]
    tasks = [row | {"fingerprint": record.fingerprint} for row in rows]
    about: dict[str, Any] = {
        "id": f"run-{number}",
        "flow": "pretrain",
        "command": f"atelier pretrain seed={number}",
    }
    about |= {"status": "finished", "started": float(number), "tasks": tasks}
    write_manifest(shelf.store, RunManifest.model_validate(about))
    return record


def test_runs_are_picked_from_exactly_when_all_are_of_one_held_out_set(shelf: Shelf) -> None:
    dice = random.Random(8)
    known = {number: dice.choice([*SETS, None]) for number in range(10)}
    for number, name in known.items():
        model(shelf, number, 2 + dice.random(), **({"held_out": name} if name else {}))
    for _ in range(60):
        asked = dice.sample(sorted(known), dice.randint(1, 3))
        words = [f"run-{number}" for number in asked]
        if len({known[number] for number in asked}) == 1:
            assert len(choose(shelf.store, words, "model.eval_loss").candidates) == len(asked)
            continue
        with pytest.raises(ConfigError) as caught:
            choose(shelf.store, words, "model.eval_loss")
        first = next(n for n in asked if known[n] != known[asked[0]])
        one, other = known[asked[0]] or UNKNOWN, known[first] or UNKNOWN
        assert f"run-{asked[0]} is on {one}, run-{first} on {other}: " in str(caught.value)
        assert "atelier score" in str(caught.value) and "\n" not in str(caught.value)
        assert len(choose(shelf.store, words, "model.loss").candidates) == len(asked)  # of the batches


def test_pick_refuses_them_in_one_line_and_gives_no_alias(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", shelf.store.root)
    model(shelf, 1, 2.0, held_out=SETS[0])
    model(shelf, 2, 2.5, held_out=SETS[1])
    assert run(["pick", "run-1", "run-2", "--by", "model.eval_loss"]) == 2
    said = capsys.readouterr()
    assert SETS[0] in said.err and SETS[1] in said.err and said.err.count("\n") == 1 and not said.out
    assert not (Path(shelf.store.root) / "aliases").exists()


def sweep(shelf: Shelf, key: str) -> Session:
    """A sweep of which no point is to run."""

    def run_here(point: SweepPoint, sweep: str, stop: threading.Event) -> RunOutcome:
        raise AssertionError(f"#{point.number} runs")

    ledger = Ledger.begin(shelf.store, SweepInfo("pretrain", (), (key,), "grid"))
    return Session("pretrain", (key,), shelf.store, ledger, "atelier pretrain", run_here=run_here)


def test_a_sweep_has_no_best_point_of_different_sets_and_says_so(shelf: Shelf) -> None:
    session = sweep(shelf, "train.sequence")
    for number, (loss, name) in enumerate([(2.5, SETS[0]), (2.0, SETS[0]), (1.5, SETS[1])]):
        made = model(shelf, number, loss, held_out=name)
        row = {"name": "train", "key": "model", "kind": "model", "model": "model"}
        entry = PointEntry(number, made.fingerprint, [f"train.seed={number}"], state=DONE, value=loss)
        entry.made, entry.metric = [row | {"fingerprint": made.fingerprint}], "model.eval_loss"
        session.ledger.write(entry)
        best = session.best()
        assert (best.number if best else None) == [0, 1, None][number]
    assert f"#0 is on {SETS[0]}, #2 on {SETS[1]}: " in session.unranked()


def test_a_sweep_whose_metric_no_point_has_says_so(shelf: Shelf) -> None:
    session = sweep(shelf, "train.seed")
    assert session.unranked() == ""
    entry = PointEntry(0, "0" * 64, ["train.seed=1"], state=DONE)
    entry.metric = "model.right"
    session.ledger.write(entry)
    assert session.best() is None and "no point has a model.right; give another" in session.unranked()


def test_a_metric_of_a_model_that_no_point_makes_is_refused_before_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    words = ["pretrain", "-m", "experiment=tiny", "name=mine", "train.seed=1,2", "--dry-run"]
    assert run([*words, "hydra.sweeper.metric=nope.eval_loss"]) == 2
    assert "hydra.sweeper.metric: no nope in this sweep; there is mine" in capsys.readouterr().err
    for known in ("mine.eval_loss", "model.eval_loss", "train.eval_loss", "eval_loss"):
        assert run([*words, f"hydra.sweeper.metric={known}"]) == 0


def test_scores_say_their_set_themselves_or_by_their_identity(shelf: Shelf) -> None:
    def scores(number: int, tokens: str, sequence: int, **more: Any) -> Record:
        summary = {"loss": 2.0, "bits_per_byte": 1.5, "tokens": 3000, "sequence": sequence} | more
        parents = {"tokens": tokens, "model": f"{number:064x}"}
        return shelf.publish("scores", "s", parents, summary=summary, max_tokens=3000, sequence=sequence)

    one, other = "ab" * 32, "cd" * 32
    old, new = scores(1, one, 64), scores(2, one, 64, held_out=scored_name(one, 3000, 64))
    narrow, foreign = scores(3, one, 32), scores(4, other, 64)
    assert held_out_of(old, "s.loss") == held_out_of(new, "s.loss")
    for word, is_one in (("loss", False), ("bits_per_byte", True)):
        assert differing([("a", held_out_of(old, word)), ("b", held_out_of(narrow, word))])
        problem = differing([("a", held_out_of(old, word)), ("b", held_out_of(foreign, word))])
        assert is_one == (not problem)
    assert held_out_of(old, "s.tokens") is None
