"""Output of a running flow without a terminal."""

import threading
from io import StringIO

import pytest
from rich.console import Console

from atelier.flows.run import screen as screens
from atelier.flows.run.screen import EVERY_S, Screen


def test_progress_is_one_line_in_ten_seconds_for_all_nodes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    out = StringIO()
    screen = Screen(Console(file=out, width=200))

    def work(node: str) -> None:
        screen.on_message(node, {"state": "running"})
        for step in range(50):
            screen.on_message(node, {"progress": step, "total": 100, "unit": "steps", "rate": 10.0})

    threads = [threading.Thread(target=work, args=(f"train.{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = [line for line in out.getvalue().splitlines() if not line.startswith(">")]
    assert len(lines) == 1
    now[0] += EVERY_S
    screen.on_message("train.1", {"state": "done"})
    screen.on_message("train.0", {"progress": 60, "total": 100, "unit": "steps", "rate": 10.0})
    last = out.getvalue().splitlines()[-1]
    assert "train.0: 60/100 steps, 4 s left" in last and "train.2: 49/100" in last and "train.1" not in last
