"""What trainings took, of their metric lines."""

import json
from pathlib import Path

import pytest

from atelier.infra.calibration.history import measure


def written(folder: Path, text: str) -> str:
    (folder / "metrics").mkdir(parents=True)
    (folder / "metrics" / "metrics-000001-000001.jsonl").write_text(text)
    return str(folder)


def test_steps_are_told_by_their_median_without_the_first_ones(tmp_path: Path) -> None:
    timings = [9.0, 9.0, 9.0, 1.0, 2.0, 1.0]
    lines = [
        {
            "step": n,
            "values": {},
            "timing": {"step_s": s, "tokens_per_s": 1 / s, "memory_gb": n, "time": 100.0 + n},
        }
        for n, s in enumerate(timings, start=1)
    ]
    seen = measure([written(tmp_path, "\n".join(map(json.dumps, lines)))])
    assert seen is not None and seen.step_s == 1.0 and seen.memory_gb == 6


@pytest.mark.parametrize("text", ["", "{", '{"step": 1, "values": {}, "timing": {"step_s": 1.0}}'])
def test_of_damaged_or_empty_files_nothing_is_learned(tmp_path: Path, text: str) -> None:
    assert measure([written(tmp_path / "one", text), str(tmp_path / "none")]) is None
