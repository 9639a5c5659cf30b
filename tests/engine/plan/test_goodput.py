"""Effective training time: the formula against failures drawn at random."""

import pytest
from benchmarks.goodput import GPUS, MTBF_HOURS, SETTINGS, drawn, measure

from atelier.engine.plan.goodput import Faults, between_failures


def test_the_formula_is_within_a_point_of_failures_drawn_at_random() -> None:
    rows = [row for row in measure(hours=4000).values() if isinstance(row, dict)]
    assert len(rows) == 2 * len(SETTINGS)
    assert all(abs(row["predicted"] - row["drawn"]) < 1 for row in rows), rows


def test_97_percent_on_16384_devices_needs_a_checkpoint_every_two_minutes_that_stalls_a_second() -> None:
    faults = Faults(between=between_failures(MTBF_HOURS, GPUS), stall=1, detect=30, restart=120)
    assert faults.effective(120) == pytest.approx(0.971, abs=0.001)
    assert 120 < faults.best_interval < 160


def test_no_other_interval_is_better_than_the_best() -> None:
    faults = Faults(between=10_000, stall=4, detect=30, restart=120)
    best = faults.effective(faults.best_interval)
    assert all(
        best >= faults.effective(faults.best_interval * factor) - 1e-4 for factor in (0.5, 0.8, 1.25, 2)
    )
    assert drawn(faults, faults.best_interval, 4000, 1) > drawn(faults, faults.best_interval * 8, 4000, 1)
