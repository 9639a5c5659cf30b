"""Cores and memory within the limits of a container's control groups, v1 and v2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.engine.config.pool import Pool
from atelier.engine.io import machine
from atelier.engine.io.machine import cores, memory_gb, num_cores
from tests.checkout import TOP

HERE = len(os.sched_getaffinity(0))
WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
V2 = "30 20 0:26 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1_CPU = "31 20 0:27 {top} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "32 20 0:28 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
NONE = "9223372036854771712"  # v1's word for no limit


def machine_of(folder: Path, groups: str, mounts: list[str], files: dict[str, str]) -> Path:
    """A root with these lines of /proc/self and these files below /sys/fs/cgroup."""
    files = {
        "proc/self/cgroup": groups,
        "proc/self/mountinfo": "\n".join(["1 0 0:1 / / rw - ext4 /dev/vda rw", *mounts]) + "\n",
    } | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def v1(folder: Path, path: str, top: str, files: dict[str, str]) -> Path:
    mounts = [line.format(top=top) for line in (V1_CPU, V1_MEMORY)]
    return machine_of(folder, f"4:memory:{path}\n2:cpu,cpuacct:{path}\n", mounts, files)


def v2(folder: Path, path: str, top: str, files: dict[str, str]) -> Path:
    return machine_of(folder, f"0::{path}\n", [V2.format(top=top)], files)


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(2, 10)))


@pytest.mark.parametrize(
    ("cpu_max", "count"),
    [
        ("max 100000", 8),
        ("300000 100000", 3),
        ("150000 100000", 1),
        ("1000 100000", 1),
        ("9000000 100000", 8),
    ],
)
def test_a_quota_of_v2_limits_the_cores_to_what_it_pays_for(tmp_path: Path, cpu_max: str, count: int) -> None:
    root = v2(tmp_path, "/", "/", {"cpu.max": f"{cpu_max}\n"})
    assert num_cores(root) == count and cores(root) == list(range(2, 2 + count))


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("250000", 2), ("50000", 1)])
def test_a_quota_of_v1_limits_them_likewise(tmp_path: Path, quota: str, count: int) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": quota, "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    assert num_cores(v1(tmp_path, "/docker/1", "/docker/1", files)) == count


def test_the_smallest_limit_of_the_groups_above_counts(tmp_path: Path) -> None:
    files = {
        "pod.slice/cpu.max": "200000 100000",
        "pod.slice/memory.max": "2000000000",
        "pod.slice/one/cpu.max": "400000 100000",
        "pod.slice/one/memory.max": "max",
        "other/cpu.max": "100000 100000",
        "other/memory.max": "1",
    }
    root = v2(tmp_path, "/pod.slice/one", "/", files)
    assert (num_cores(root), memory_gb(root)) == (2, 2.0)


def test_a_container_that_sees_its_group_at_the_mount_finds_its_limits_there(tmp_path: Path) -> None:
    """Docker with v1: the path is the host's, and the mount has the group's own files."""
    files = {"memory/memory.limit_in_bytes": "1500000000", "cpu,cpuacct/cpu.cfs_quota_us": "200000"}
    files |= {"cpu,cpuacct/cpu.cfs_period_us": "100000"}
    root = v1(tmp_path / "one", "/docker/1", "/docker/1", files)
    assert (num_cores(root), memory_gb(root)) == (2, 1.5)
    root = v1(
        tmp_path / "two", "/docker/1", "/", files
    )  # of another namespace: not there, so the mount counts
    assert (num_cores(root), memory_gb(root)) == (2, 1.5)


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    root = v1(tmp_path / "one", "/", "/", {"memory/memory.limit_in_bytes": NONE})
    assert (num_cores(root), memory_gb(root)) == (8, WHOLE)
    broken = v2(tmp_path / "two", "/../x", "/", {"cpu.max": "", "memory.max": "much"})
    assert (num_cores(broken), memory_gb(broken)) == (8, WHOLE)
    assert (num_cores(tmp_path / "none"), memory_gb(tmp_path / "none")) == (8, WHOLE)


def test_slots_threads_serving_and_plans_follow_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atelier.engine.config.parallel import Parallel
    from atelier.engine.parallel.gang import num_threads
    from atelier.flows.run.memory_fit import limit_gb
    from atelier.flows.run.pools import gangs_at_once
    from atelier.infra.launch.slots import CoreSlots, num_slots

    root = v2(tmp_path, "/", "/", {"cpu.max": "200000 100000", "memory.max": "1000000000"})
    for function in (cores, memory_gb):
        monkeypatch.setattr(function, "__defaults__", (root,))
    monkeypatch.setattr(num_cores, "__defaults__", (root,))
    assert (num_slots(Pool()), gangs_at_once(Pool()), num_threads(Parallel(), 1)) == (2, 2, 2)
    assert CoreSlots(Pool(), tmp_path / "slots").num_there == 2
    assert limit_gb(Pool(), 2) == 0.5


def test_no_other_file_asks_the_system_for_cores_or_memory() -> None:
    words = ("cpu_count", "sched_getaffinity", "SC_PHYS_PAGES", "MemTotal", "psutil")
    folders = ("engine", "flows", "infra", "tasks", "src")
    asking = [
        path
        for folder in folders
        for path in (TOP / folder).rglob("*.py")
        if path != Path(machine.__file__).resolve() and any(word in path.read_text() for word in words)
    ]
    assert asking == []


@pytest.mark.root
def test_a_real_limit_of_memory_is_the_limit(tmp_path: Path) -> None:
    mount = Path("/sys/fs/cgroup/memory")
    if not (mount / "memory.limit_in_bytes").exists():
        pytest.skip("no cgroup v1 memory controller is mounted here")
    group = mount / f"atelier-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(600 * (1 << 20)))
        code = "from atelier.engine.io.machine import memory_gb; print(memory_gb())"
        command = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -c '{code}'"
        said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
        assert float(said) == pytest.approx(600 * (1 << 20) / 1e9)
    finally:
        group.rmdir()
