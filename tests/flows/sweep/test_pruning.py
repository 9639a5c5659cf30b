"""Who looks at a point's held-out losses gives it up while that saves something, and not afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.run_file import SegmentAddress
from atelier.flows.sweep import pruning
from atelier.flows.sweep.pruning import LossWatch


@pytest.mark.parametrize(("verdict_at", "is_hopeless"), [(40, True), (80, True), (120, False)])
def test_a_verdict_at_the_last_step_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict_at: int, is_hopeless: bool
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    lines = [{"step": step, "values": {"eval/loss": 3.0}} for step in (40, 80, 120)]
    (folder / "metrics-001-000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    whole = SegmentAddress(fingerprint="0" * 64, url=str(tmp_path), start=0, end=120)
    monkeypatch.setattr(pruning, "curve_of", lambda *_: (whole,))
    seen = []

    def look(point: Any, step: int, loss: float) -> bool:
        seen.append(step)
        return step < verdict_at

    point: Any = None
    one = LossWatch(point, "", look)
    assert one.go_on() is not is_hopeless
    assert one.is_hopeless is is_hopeless
    assert seen == [step for step in (40, 80, 120) if step <= verdict_at]
