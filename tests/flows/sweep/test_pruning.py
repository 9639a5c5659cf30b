"""A point is ended early by the values of the sweep's metric, if that saves steps."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.run_file import SegmentAddress
from atelier.flows.sweep import pruning
from atelier.flows.sweep.pruning import CurveWatch, recorded


def has_curve(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: dict[str, Any]) -> None:
    """Give every point a curve of 120 steps with these lines."""
    (folder / "metrics").mkdir()
    (folder / "metrics" / "metrics-001-000.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in lines)
    )
    whole = SegmentAddress(fingerprint="0" * 64, url=str(folder), start=0, end=120)
    monkeypatch.setattr(pruning, "curve_of", lambda *_: (whole,))


@pytest.mark.parametrize(("verdict_at", "is_hopeless"), [(40, True), (80, True), (120, False)])
def test_a_verdict_at_the_last_step_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict_at: int, is_hopeless: bool
) -> None:
    has_curve(
        tmp_path, monkeypatch, *({"step": step, "values": {"eval/loss": 3.0}} for step in (40, 80, 120))
    )
    seen = []

    def look(point: Any, step: int, loss: float) -> bool:
        seen.append(step)
        return step < verdict_at

    point: Any = None
    one = CurveWatch(point, "model.eval_loss", look)
    assert one.go_on() is not is_hopeless
    assert one.is_hopeless is is_hopeless
    assert seen == [step for step in (40, 80, 120) if step <= verdict_at]


def test_a_point_is_compared_by_the_values_of_the_metric_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"loss": 2.0, "eval/loss": 3.0}
    has_curve(tmp_path, monkeypatch, {"step": 8, "values": values}, {"step": 9, "values": {"loss": 1.0}})
    point: Any = None
    assert recorded(point, "model.loss") == {8: 2.0, 9: 1.0}
    assert recorded(point, "model.eval_loss") == {8: 3.0}
    assert recorded(point, "scores.accuracy") == {}
