"""`plan --calibrate` for real: this machine is measured, and later plans use the result."""

import json
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.flows.cli.main import run
from atelier.infra.calibration.calibrate import planned, probe, random_tokens, run_probes
from atelier.infra.calibration.history import facts

pytestmark = pytest.mark.slow
WORDS = ["plan", "pretrain", "model=gpt_nano", "train.steps=10"]


def step_s(capsys: pytest.CaptureFixture[str], *more: str) -> float:
    capsys.readouterr()
    assert run([*WORDS, *more]) == 0
    tasks: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["tasks"]
    [found] = [task["step_s"] for task in tasks if task["name"] == "train"]
    return float(found)


def test_a_measured_machine_is_planned_by_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    before = step_s(capsys, "--json")
    assert run([*WORDS, "--calibrate"]) == 0
    assert "measuring: one thread" in (said := capsys.readouterr().err) and "a core: " in said
    after = step_s(capsys, "--json")
    assert after != before

    pool = facts(str(tmp_path / "store"), Pool())
    assert pool != Pool() and 0 < pool.device.node_gbps <= pool.device.memory_gbps
    alone = Parallel(shard=1, threads=1, compile="none")
    other = probe("other", alone, 256, 3, 128, 8)  # not one of the shapes that were measured
    tokens = random_tokens(tmp_path / "tokens")
    [(measured, _)] = run_probes(str(tmp_path / "store"), tmp_path / "other", tokens, alone, [other])
    # far from a claim of its accuracy, which is that of benchmarks/planner.py
    assert 1 / 3 < planned(pool, other) / measured.step_s < 3
