"""`atelier doctor`: each check is seen on a machine where it is broken."""

import json
import os
import resource
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.engine.io import machine
from atelier.flows.cli.main import run
from atelier.flows.run import doctor
from atelier.flows.run.doctor import CheckRow

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATELIER_ROOT", str(tmp_path / "store"))
    return tmp_path / "store"


def states(found: Iterator[CheckRow]) -> dict[str, str]:
    return {one["check"]: one["state"] for one in found}


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> None:
    """Have these shell scripts alone on PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_an_old_python_is_broken() -> None:
    assert doctor.check_python()["state"] == "ok"
    found = doctor.check_python((3, 9, 7))
    assert found["state"] == "broken" and "install Python 3.11" in found["to_do"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libcudart.so.12: no such file')", "libcudart.so.12: no such file"),
        ("import os; os.abort()", "exit code -6"),
    ],
)
def test_a_torch_that_cannot_be_imported_or_kills_its_process_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    (tmp_path / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = doctor.check_torch()
    assert (
        found["state"] == "broken"
        and said in found["found"]
        and "pip install 'atelier-lm[train]'" in found["to_do"]
    )


FAKE = """
__version__ = "2.0"
class tensor:
    def __matmul__(self, other): return self
    def sum(self): return {product}
def ones(*sizes, device): return tensor()
class cuda:
    device_count = staticmethod(lambda: {gpus})
    is_bf16_supported = staticmethod(lambda: {half})
"""


def test_a_torch_without_the_drivers_gpus_one_that_computes_wrong_and_gpus_without_bf16_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # files of one size within one second
    monkeypatch.setattr(doctor, "gpu_names", lambda: ["NVIDIA T4"])
    (tmp_path / "torch.py").write_text(FAKE.format(product=512, gpus=0, half=False))
    found = {one["check"]: one for one in doctor.check_torch()}
    assert found["torch"]["state"] == "ok" and found["device"]["state"] == "broken"
    assert "torch sees none" in found["device"]["found"]
    (tmp_path / "torch.py").write_text(FAKE.format(product=512, gpus=1, half=False))
    assert states(doctor.check_torch()) == {"torch": "ok", "device": "ok", "16-bit arithmetic": "note"}
    (tmp_path / "torch.py").write_text(FAKE.format(product=511, gpus=1, half=True))
    (wrong,) = doctor.check_torch()
    assert wrong["state"] == "broken" and "computes wrong products" in wrong["found"]


def test_a_torch_that_does_not_answer_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "TORCH_S", 0.2)
    (found,) = doctor.check_torch()
    assert found["state"] == "broken" and "no answer" in found["found"]


def test_cpus_without_16_bit_arithmetic_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "has_half", lambda: False)
    found = doctor.check_half()
    assert found["state"] == "note" and found["to_do"] == "train.precision=float32"
    assert doctor.check_half(has_gpu=True, gpu_half=True)["state"] == "ok"


def test_a_port_that_another_program_has_is_broken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(doctor, "PREFECT_PORT", other.getsockname()[1])
        found = {one["check"]: one for one in doctor.check_ports(str(root))}["port of prefect"]
    assert found["state"] == "broken" and "--prefect-port" in found["to_do"]


def test_a_full_disk_is_broken_and_a_nearly_full_one_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free, state in ((5e8, "broken"), (5e9, "note"), (5e10, "ok")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place, free=free: Usage(1e12, 0, free))
        assert doctor.check_disk(tmp_path / "not" / "there")["state"] == state


def test_a_store_that_is_a_file_or_creates_twice_or_cannot_be_written_is_broken(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.check_store(str(root))["state"] == "ok" and not root.exists()
    root.write_text("a file")
    found = doctor.check_store(str(root))
    assert found["state"] == "broken" and "is a file" in found["found"] and "ATELIER_ROOT" in found["to_do"]
    root.unlink()
    monkeypatch.setattr(doctor, "create_exclusive", lambda url, data: True)
    assert "created twice" in doctor.check_store(str(root))["found"]

    def full(url: str, data: bytes) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "create_exclusive", full)
    found = doctor.check_store(str(root))
    assert found["state"] == "broken" and "no space left on device" in found["found"]


def test_a_batch_system_that_does_not_answer_is_noted_and_none_is_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path / "none", monkeypatch)
    assert states(doctor.check_batch()) == {"batch systems": "ok"}
    programs(
        tmp_path / "bin", monkeypatch, sbatch="true", sinfo="echo no slurm.conf >&2; exit 1", kubectl="true"
    )
    found = {one["check"]: one for one in doctor.check_batch()}
    assert found["slurm"]["state"] == "note" and found["slurm"]["found"] == "no slurm.conf"
    assert found["kubernetes"]["state"] == "ok"


def test_an_older_or_missing_library_is_broken() -> None:
    assert doctor.check_versions(["numpy>=1.0", "nothing; extra == 'more'"])["state"] == "ok"
    found = doctor.check_versions(["numpy>=99", "not-installed-here<2"])
    assert found["state"] == "broken" and found["to_do"] == "pip install 'numpy>=99' 'not-installed-here<2'"
    assert "not-installed-here is missing, <2 is required" in found["found"]


def test_a_container_with_too_little_memory_and_too_few_open_files_are_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("500000000")
    (group / "cpu.max").write_text("100000 100000")
    own = tmp_path / "proc/self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text("0::/\n")
    (own / "mountinfo").write_text("30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 128))
    found = {one["check"]: one for one in doctor.check_limits(tmp_path)}
    assert found["limits"]["state"] == found["open files"]["state"] == "broken"
    assert found["limits"]["found"].startswith(f"1 of {os.cpu_count()} cores, 0.5 of")
    assert found["open files"]["to_do"] == "ulimit -n 1024"


def test_the_command_prints_every_check_and_ends_with_1_if_one_is_broken(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "check_torch", lambda: iter([doctor.ok("torch", "2.0")]))
    monkeypatch.setattr(doctor, "check_ports", lambda root: iter([]))
    assert run(["doctor"]) == 0
    assert "ok      torch" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "check_versions", lambda: doctor.broken("versions", "old", "pip install x"))
    assert run(["doctor", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert {"check": "versions", "state": "broken", "found": "old", "to_do": "pip install x"} in rows
    assert run(["doctor", "now"]) == 2
    assert "takes no argument 'now'" in capsys.readouterr().err
