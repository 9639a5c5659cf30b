"""The page of a run over several sites: its rows; its failures do not fail the run."""

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atelier.engine.config.metric import FOLDER
from atelier.flows.run.compose import compose
from atelier.flows.run.plan import Plan, make_plan
from atelier.flows.sites import sites_page
from atelier.flows.sites.sites_page import SitesPage, showing_sites
from atelier.infra.dag import Node
from atelier.infra.store.store import Store

WORDS = ("experiment=tiny", "train.link.every=6", "sites.loopback=true", "sites=[a,b]")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path))
    return make_plan(compose("distill", [*WORDS]), Store(str(tmp_path)))


def trained(node: Node, root: Path, steps: int) -> None:
    """Lines of all its trajectories, each as if a longer training had gone on with it."""
    for role, product in node.products.items():
        first = int(node.training.roles[role].start) + 1
        for fingerprint in product.trajectories:
            folder = Path(Store(str(root)).address("trajectory", fingerprint)) / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            timing = {"step_s": 1.0, "link_s": 0.5, "link_bytes": 1000}
            lines = [{"step": n, "values": {}, "timing": timing} for n in range(first, steps + 1)]
            (folder / "metrics-000001-000001.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_a_row_is_of_the_model_s_own_steps(plan: Plan, tmp_path: Path) -> None:
    """Not of those after a branch, nor of a longer training of the same trajectory."""
    page = SitesPage(plan, Store(str(tmp_path)), {})
    [node] = [each for each in plan.nodes if each.task == "train" and len(each.products) > 1]
    assert any(len(product.trajectories) > 1 for product in node.products.values())
    trained(node, tmp_path, 200)
    rows = [row.split(" | ") for row in page.text.splitlines() if row.startswith(f"| {node.name}.")]
    training = node.training
    steps = {
        f"| {node.name}.{key}": training.roles[key].last(training.train.num_steps)
        - int(training.roles[key].start)
        for key in node.products
    }
    assert {row[0]: int(row[2]) for row in rows} == steps


def test_a_training_that_has_ended_was_at_its_last_step(plan: Plan, tmp_path: Path) -> None:
    """Its last word may come after its end."""
    [name] = [each.name for each in plan.nodes if each.task == "train" and len(each.products) > 1]
    states = {name: "running"}
    page = SitesPage(plan, Store(str(tmp_path)), states)
    page.heard(name, {"unit": "steps", "progress": 23, "total": 24})
    assert f"{name} 23/24" in page.text
    states[name] = "done"
    assert f"{name} 24/24" in page.text


class Stuck:
    """A page whose server answers late, or not at all."""

    def __init__(self, *_: Any) -> None:
        self.shown: list[str] = []
        made.append(self)

    def update(self, text: str) -> None:
        self.shown.append(threading.current_thread().name)
        release.wait(30)
        raise ValueError("a page")


made: list[Stuck] = []
release = threading.Event()


def context_of(root: Path) -> Any:
    return SimpleNamespace(store=Store(str(root)), listener=lambda *_: None)


def test_a_page_delays_a_run_by_no_more_than_its_limit(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sites_page, "Updated", Stuck)
    monkeypatch.setattr(sites_page, "LAST_S", 0.1)
    began = time.monotonic()
    try:
        with showing_sites(plan, context_of(tmp_path), {}):
            pass
        assert time.monotonic() - began < 10 and "MainThread" not in made[-1].shown
    finally:
        release.set()


@pytest.mark.parametrize("at", ["text", "created", "updated"])
def test_a_page_that_fails_hides_no_error_of_the_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("a page")

    release.set()
    monkeypatch.setattr(sites_page, "Updated", fails if at == "created" else Stuck)
    if at == "text":
        monkeypatch.setattr(SitesPage, "text", property(fails))
    with pytest.raises(RuntimeError, match="of the run"), showing_sites(plan, context_of(tmp_path), {}):
        raise RuntimeError("of the run")
