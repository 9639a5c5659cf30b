"""Metrics with known and unknown names, by which a finished sweep of a few points is compared. Its best
point, its report, `pick` and `@best` agree with the declared or given direction, or the metric is refused.
"""

import contextlib
import io
import json
import os
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from atelier.engine.config.error import ConfigError
from atelier.flows.cli.main import run
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.sweep_ledger import DONE, Ledger, PointEntry, SweepInfo
from atelier.flows.run.sweep_point import SweepPoint
from atelier.flows.sweep import pick, session
from atelier.flows.sweep.report import content_of
from atelier.flows.sweep.session import Session
from atelier.infra.report.sweep_report import table_of
from atelier.infra.store.store import Store
from tests.infra.records import Shelf

COUNT = 10
LOWER = ("loss", "eval_loss", "bits_per_byte", "loss_after", "loss_before", "gzip", "trigram")
HIGHER = ("accuracy", "accuracy_normalised", "bytes_per_token")
STEMS = ("word", "eval", "bits", "exact", "in", "score", "näher", "Loss", "1", "")
ENDS = ("accuracy", "loss", "f1", "auc", "exact_match", "perplexity", "loss_drop", "error", "params", "länge")
NAMES = ("scores", "base/pretrained-0", "student_a", "a.b", "")
TOKENS = {"tokens.main": "ab" * 32}


def draw(rng: random.Random) -> dict[str, Any]:
    is_known = rng.random() < 0.5
    word = rng.choice(LOWER + HIGHER) if is_known else "_".join((rng.choice(STEMS), rng.choice(ENDS)))
    numbers = (rng.uniform(-1, 1), rng.uniform(0, 1e-9), 10 ** rng.uniform(0, 30), 0.0, rng.randint(-3, 3))
    return {
        "name": rng.choice(NAMES),
        "word": word,
        "given": rng.choice(("", "", "minimize", "maximize")),
        "by": rng.choice(("", "the metric", "--highest", "--lowest")),
        "values": [rng.choice(numbers) for _ in range(rng.randint(1, 4))],
    }


def check(case: dict[str, Any], folder: Path) -> str:
    metric = f"{case['name']}.{case['word']}".lstrip(".")
    known = {**dict.fromkeys(LOWER, "minimize"), **dict.fromkeys(HIGHER, "maximize")}
    direction = case["given"] or known.get(case["word"], "")
    one = finished(case, folder)
    try:
        one.compare(metric, case["given"])
    except ConfigError as error:
        assert not direction, error
        assert metric in str(error) and "hydra.sweeper.direction=maximize or minimize" in str(error)
        return "refused"
    assert direction, f"a direction of {metric} was guessed"
    one.revalue()
    best = best_of(case["values"], direction)
    found = one.best()
    assert found is not None and found.number == best, found
    content = content_of(one)
    assert content.best == best and table_of(content).rows[0][0] == f"#{best} best", content
    check_pick(case, one, metric, direction)
    return "works"


def check_pick(case: dict[str, Any], one: Session, metric: str, direction: str) -> None:
    words = ["pick", one.ledger.id, "--json", *([] if not case["by"] else ["--by", metric])]
    if case["by"].startswith("--"):
        direction = {"--highest": "maximize", "--lowest": "minimize"}[case["by"]]
        words.append(case["by"])
    said = io.StringIO()
    with patch.dict(os.environ, ATELIER_ROOT=one.store.root), contextlib.redirect_stdout(said):
        assert run(words) == 0
    best = best_of(case["values"], direction)
    assert json.loads(said.getvalue())["best"]["label"] == f"#{best}", said.getvalue()
    made = one.ledger.entry(best).made[1]["fingerprint"]
    assert one.store.resolve("model@best").fingerprint == made


def best_of(values: list[float], direction: str) -> int:
    """The point with the best value, of equal ones the first."""
    return values.index((max if direction == "maximize" else min)(values))


def finished(case: dict[str, Any], folder: Path) -> Session:
    """A sweep of which every point is finished, each with a model and what was measured of it."""
    shelf = Shelf(Store(str(folder / "store")))
    ledger = Ledger.begin(shelf.store, SweepInfo("pretrain", (), ("train.seed",), "grid"))
    for number, value in enumerate(case["values"]):
        segment = shelf.trajectory("model", TOKENS, seed=number)
        model = shelf.model("model", segment, TOKENS, step=400)
        summary = {case["word"]: value}
        name = case["name"] or "scores"
        scores = shelf.publish("scores", name, {"model": model.fingerprint}, summary=summary)
        entry = PointEntry(number, f"{number:064x}", [f"train.seed={number}"], state=DONE)
        entry.made = [
            {"name": key, "key": key, "kind": it.kind, "model": key, "fingerprint": it.fingerprint}
            for key, it in ((name, scores), ("model", model))
        ]
        ledger.write(entry)
    return Session("pretrain", ("train.seed",), shelf.store, ledger, "atelier pretrain", run_here=never)


def never(point: SweepPoint, sweep: str, stop: threading.Event) -> RunOutcome:
    raise AssertionError(f"#{point.number} runs")


@contextmanager
def broken() -> Iterator[None]:
    """Directions are guessed from the ends of names."""

    def guessed(metric: str, place: str, way_out: str) -> str:
        return "maximize" if metric.endswith(("accuracy", "auc", "f1", "exact_match")) else "minimize"

    with ExitStack() as stack:
        for module in (session, pick):
            stack.enter_context(patch.object(module, "required", guessed))
        yield
