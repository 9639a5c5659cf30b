"""A pool finds the GPUs of a machine, and a worker reports them to plans of other machines."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atelier.engine.config.error import ConfigError
from atelier.engine.config.pool import Pool
from atelier.flows.cli.main import run
from atelier.flows.run.compose import compose
from atelier.flows.run.pools import gangs_at_once, gpu_notes, of_worker, pool_of
from atelier.infra.calibration import calibrate
from atelier.infra.calibration.history import facts
from atelier.infra.launch import gpus
from atelier.infra.launch.found_gpus import FoundGpus, gpus_here, report_gpus
from atelier.infra.launch.gpus import lock_name
from atelier.infra.launch.locks import FOLDER, FOR_ALL, try_lock
from atelier.infra.launch.slots import GpuSlots, num_slots
from tests.infra.launch.gpu_machine import H100, machine, uuid

ALL = [uuid(number) for number in range(8)]
HERE, GPU = Pool(gpu="auto"), Pool(name="gpu", gpu="auto")
Machine = Callable[..., Path]


@pytest.fixture
def machine_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Gives this process's machine these GPUs."""

    def give(uuids: list[str], **more: Any) -> Path:
        for key, value in machine(tmp_path, uuids, **more).items():
            monkeypatch.setenv(key, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
        return tmp_path

    return give


@pytest.fixture
def no_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpus, "MODULE", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_here_is_all_gpus_of_the_machine_with_type_and_memory(machine_with: Machine, tmp_path: Path) -> None:
    machine_with(ALL)
    pool = facts(str(tmp_path), HERE)
    assert (pool.gpu, pool.gpus, num_slots(pool), pool.half) == ("h100", 8, 8, True)
    assert pool.device.memory_gb == pytest.approx(79.5, abs=0.1)  # 81559 MiB less the driver's share
    assert pool.found.startswith(f"8 of 8 x {H100} at ")


def test_gpus_in_use_are_left_out_of_plans_and_of_slots(machine_with: Machine, tmp_path: Path) -> None:
    machine_with(ALL, used={ALL[0]: 70_000, ALL[5]: 9_000})
    pool = facts(str(tmp_path), HERE)
    assert pool.gpus == 6
    with GpuSlots(pool).claim(6, threading.Event()) as claim:
        assert set(GpuSlots(pool).devices(claim).split(",")) == {*ALL} - {ALL[0], ALL[5]}
    asked = facts(str(tmp_path), HERE.model_copy(update={"gpus": 7}))  # the user knows better
    assert asked.gpus == 7 and GpuSlots(asked).num_there == 8


def test_without_a_free_gpu_a_run_waits_for_those_of_ateliers_other_gangs(machine_with: Machine) -> None:
    folder = machine_with(ALL[:3], used=dict.fromkeys(ALL[:3], 50_000))
    held = try_lock(folder / "locks" / lock_name(ALL[1]), FOR_ALL)
    assert held is not None
    found = gpus_here()
    assert found is not None and (found.total, found.free) == (3, 1)


def test_a_worker_counts_the_gpus_of_ateliers_gangs_as_its_own(machine_with: Machine) -> None:
    folder = machine_with(ALL[:3], used={ALL[1]: 50_000, ALL[2]: 50_000})
    held = try_lock(folder / "locks" / lock_name(ALL[1]), FOR_ALL)
    assert held is not None
    assert [one.free for one in (gpus_here(), gpus_here(is_worker=True)) if one is not None] == [1, 2]


def test_visible_devices_and_the_pools_number_limit_the_gpus(
    machine_with: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine_with(ALL)
    assert facts(str(tmp_path), HERE.model_copy(update={"gpus": 2})).gpus == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3,4")
    assert facts(str(tmp_path), HERE).gpus == 3
    with pytest.raises(
        ConfigError, match=rf"pool\.gpus: is 4, but .* has 3 x {H100}; pool\.gpus=3 would fit"
    ):
        facts(str(tmp_path), HERE.model_copy(update={"gpus": 4}))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert facts(str(tmp_path), HERE).is_cpu


def test_of_two_types_the_more_frequent_one_is_used(machine_with: Machine, tmp_path: Path) -> None:
    machine_with(ALL[:3], others={ALL[0]: "NVIDIA L4"})
    pool = facts(str(tmp_path), HERE)
    assert (pool.gpu, pool.gpus) == ("h100", 2)
    with GpuSlots(pool).claim(2, threading.Event()) as claim:
        assert GpuSlots(pool).devices(claim) == f"{ALL[1]},{ALL[2]}"


def test_a_gpu_without_figures_is_used_and_its_times_are_called_guesses(machine_with: Machine) -> None:
    machine_with(ALL[:2], name="NVIDIA GeForce RTX 4090", total=24564)
    frozen: Any = compose("pretrain", ["experiment=tiny", "parallel.shard=auto"])
    assert frozen.pool.gpu == "nvidia-geforce-rtx-4090" and frozen.pool.device.memory_gb < 25
    assert frozen.document["parallel"]["shard"] == 2
    assert "times are guesses" in gpu_notes([frozen.pool])[0]


def test_a_training_uses_as_many_gpus_as_its_batch_can(machine_with: Machine) -> None:
    machine_with(ALL[:7])  # 8 sequences are split by 4 of 7
    document: Any = compose("pretrain", ["experiment=tiny", "parallel.shard=auto"]).document
    assert document["parallel"]["shard"] == 4


def test_the_plan_names_the_gpus_and_cpu_and_here_take_cpus_where_there_are_none(
    machine_with: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_with(ALL[:2])
    assert run(["plan", "pretrain", "experiment=tiny"]) == 0
    assert f"note: pool here: 2 of 2 x {H100} at " in capsys.readouterr().out
    assert compose("pretrain", ["experiment=tiny", "pool=cpu"]).pool.is_cpu
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert compose("pretrain", ["experiment=tiny"]).pool.is_cpu


@pytest.mark.usefixtures("no_gpus")
def test_without_gpus_here_is_the_cpus_and_pools_of_gpus_are_refused(tmp_path: Path) -> None:
    assert facts(str(tmp_path), HERE).is_cpu
    with pytest.raises(ConfigError, match=r"pool\.gpus: is 2, but this machine has no GPU.*pool=cpu"):
        facts(str(tmp_path), HERE.model_copy(update={"gpus": 2}))
    with pytest.raises(ConfigError, match=r"no worker has reported the GPUs of gpu.*atelier worker gpu"):
        facts(str(tmp_path), GPU)
    with pytest.raises(ConfigError, match=r"gpu serves GPUs, but this machine has no GPU"):
        of_worker(GPU)
    with pytest.raises(ConfigError, match=r"pool\.gpu: is auto, but slurm starts the gangs; give their type"):
        facts(str(tmp_path), Pool(gpu="auto", launcher="slurm"))


@pytest.mark.usefixtures("no_gpus")
def test_a_machine_without_gpus_plans_for_those_that_a_worker_has_reported(tmp_path: Path) -> None:
    told = FoundGpus(host="big", name="NVIDIA H200", total=8, free=7, memory_gb=150.7)
    report_gpus(str(tmp_path), "gpu", told, [])
    pool = facts(str(tmp_path), pool_of("gpu"))
    assert (pool.gpu, pool.gpus, pool.device.memory_gb) == ("h200", 7, 140.2)
    assert gangs_at_once(pool) == 7 and pool.is_served


def test_a_second_machine_with_other_gpus_needs_a_pool_of_its_own(tmp_path: Path) -> None:
    told = FoundGpus(host="big", name="NVIDIA H200", total=8, free=8, memory_gb=150.7)
    small = told.model_copy(update={"host": "small", "total": 4, "free": 4})
    report_gpus(str(tmp_path), "gpu", told, [])
    report_gpus(str(tmp_path), "gpu", told.model_copy(update={"host": "twin"}), ["big-gpu"])
    with pytest.raises(ConfigError, match=r"gpu has 8 x NVIDIA H200 at twin, but small has 4.*conf/pool/gpu"):
        report_gpus(str(tmp_path), "gpu", small, ["twin-gpu"])
    report_gpus(str(tmp_path), "gpu", small, [])  # nobody else serves it now
    assert facts(str(tmp_path), GPU).gpus == 4


def test_gpus_that_vanish_between_plan_and_run_are_one_line(machine_with: Machine, tmp_path: Path) -> None:
    machine_with(ALL)
    pool = facts(str(tmp_path), HERE)
    machine_with(ALL[:3])
    with pytest.raises(
        ConfigError, match=r"train: needs 8 GPUs of this machine, but may use 3; pool\.gpus=3"
    ):
        GpuSlots(pool).check(8, "train")


def test_the_tests_themselves_use_cpus_where_there_are_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in machine(tmp_path, ALL).items():
        monkeypatch.setenv(key, value)
    assert len(gpus.gpu_names()) == 8 and gpus_here() is None and facts(str(tmp_path), HERE).is_cpu


def test_gpus_are_calibrated_while_they_are_held_and_as_what_runs_here(
    machine_with: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine_with(ALL, used={ALL[0]: 70_000})
    given: list[tuple[Pool, str]] = []

    def calibrated(root: str, pool: Pool, *rest: Any) -> Pool:
        given.append((pool, rest[-1]["CUDA_VISIBLE_DEVICES"]))
        for name in rest[-1]["CUDA_VISIBLE_DEVICES"].split(","):
            assert try_lock(Path(os.environ[FOLDER]) / lock_name(name), FOR_ALL) is None
        return pool

    monkeypatch.setattr(calibrate, "calibrate", calibrated)
    assert run(["plan", "pretrain", "experiment=tiny", "--calibrate"]) == 0
    [(pool, devices)] = given
    assert pool.gpu == "h100" and pool.stack == "atelier" and len(devices.split(",")) == 2
    assert ALL[0] not in devices and "a GPU: " in capsys.readouterr().err


def test_gpus_without_figures_are_not_calibrated(
    machine_with: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine_with(ALL[:1], name="NVIDIA L40S")
    assert run(["plan", "pretrain", "experiment=tiny", "--calibrate"]) == 2
    assert "knows no figures of a nvidia-l40s; give its peak_tflops" in capsys.readouterr().err
