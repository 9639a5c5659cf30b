"""Times of trainings, from their metric lines."""

import json
from pathlib import Path

import pytest

from atelier.engine.config.pool import Pool
from atelier.infra.calibration.history import (
    Measurement,
    factor,
    facts,
    keep_facts,
    measure,
    record_measurement,
)
from atelier.infra.store.store import Store


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


def test_the_pace_is_that_of_the_device_that_ran_last_alone(tmp_path: Path) -> None:
    """A training that began on CPUs and went on on a GPU says nothing of the GPU by its first steps."""
    lines = [
        {"step": n, "values": {}, "timing": {"step_s": s, "tokens_per_s": 1 / s, "time": 100.0 + n}} | device
        for n, (s, device) in enumerate([(9.0, {})] * 5 + [(1.0, {"device": "NVIDIA H100 NVL"})] * 5)
    ]
    seen = measure([written(tmp_path, "\n".join(map(json.dumps, lines)))])
    assert seen is not None and (seen.device, seen.step_s) == ("NVIDIA H100 NVL", 1.0)


def test_what_a_cpu_measured_says_nothing_of_a_gpu_pool_of_the_same_name(tmp_path: Path) -> None:
    store, gpu = Store(str(tmp_path)), Pool(gpu="h100", gpus=1)
    record_measurement(store, "", "a" * 64, Measurement("train", 1.0, 40.0, 1.0, "cpu"))
    record_measurement(store, "", "b" * 64, Measurement("train", 1.0, 2.0, 2.0, "NVIDIA H100 NVL"))
    (tmp_path / "pools" / "here" / "old.json").write_text(
        '{"task":"train","planned_s":1,"measured_s":40,"ended":1}'
    )
    assert (factor(store, gpu), factor(store, Pool())) == (2.0, 40.0)
    assert factor(store, Pool(gpu="v100", gpus=1)) == 1.0


def test_facts_of_cpus_are_not_given_to_a_gpu_pool_of_the_same_name(tmp_path: Path) -> None:
    keep_facts(str(tmp_path), Pool(), {"launch_us": 90.0, "matmul": 0.1})
    assert facts(str(tmp_path), Pool(gpu="h100", gpus=1)).launch_us == "auto"
    assert facts(str(tmp_path), Pool()).launch_us == 90.0
