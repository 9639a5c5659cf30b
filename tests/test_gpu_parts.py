"""benchmarks/gpu.py: every part runs at toy size on CPUs, with the engine's own libraries alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import TOP

MISSING = ("prefect", "mlflow", "hydra", "omegaconf", "pytest", "sqlalchemy", "httpx")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["speed", "repeat", "students", "experts", "checkpoint", "tiers"])
def test_a_part_runs_without_the_control_plane(part: str, tmp_path: Path) -> None:
    for name in MISSING:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not here')\n")
    command = [sys.executable, "benchmarks/gpu.py", part, "--device", "cpu", "--tiny", "--steps", "12"]
    done = subprocess.run(
        command, cwd=TOP, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)["numbers"]
    assert numbers["device"] == "cpu"
    if part == "repeat":
        assert all(each["equal again"] and each["equal resumed"] for each in numbers["tiny"].values())
    if part == "tiers":
        assert all(each["bits of GPU"] for each in numbers["trainings"].values())
        assert all(each["bits of resident"] for each in numbers["passes"].values())
        assert numbers["passes"]["streamed"]["read_gb a pass"] > 0


def test_without_a_gpu_it_says_how_to_try_a_part() -> None:
    command = [sys.executable, "benchmarks/gpu.py", "speed", "--gpus", "99"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 1 and "--device cpu --tiny" in done.stderr
