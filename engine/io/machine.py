"""Resources that this process may use: cores, memory, 16-bit arithmetic. Torch-free.

Containers limit both by control groups (cgroup v1 and v2), which the system's number of cores and memory do
not reflect. `root`: location of /proc and /sys, for tests.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path("/")
CPU, MEMORY = "cpu", "memory"  # controllers


def cores(root: Path = ROOT) -> list[int]:
    """The numbers of the cores that this process may use: those of its affinity, as many as its CPU quota
    pays for, at least one.
    """
    try:
        found = sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        found = list(range(all_cores()))
    paid = min(_quotas(root), default=float(len(found)))
    return found[: max(1, int(paid))]


def num_cores(root: Path = ROOT) -> int:
    """The number of cores that this process may use."""
    return len(cores(root))


def all_cores() -> int:
    """The number of cores of the machine, whether this process may use them or not."""
    return os.cpu_count() or 1


def memory_gb(root: Path = ROOT) -> float:
    """Memory that this process may use, GB: the machine's, or the smallest limit of its control groups."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *_memory_limits(root)]) / 1e9


def versions(*packages: str) -> dict[str, str]:
    """The installed version of each package; '' if it is missing."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
    return found


def has_half() -> bool:
    """Whether the CPUs have fast 16-bit arithmetic: x86 with AVX-512, ARM with bf16 instructions
    (engine/model/placement.py checks the same with torch).
    """
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:  # macOS
        return False
    return {"avx512bw", "avx512dq", "avx512vl"} <= words or "bf16" in words


def _quotas(root: Path) -> Iterator[float]:
    """CPU quotas, in cores, of the process's groups and those above."""
    for folder in _groups(root, CPU):
        with suppress(OSError, ValueError, ZeroDivisionError):
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if (cores := int(quota) / int(period)) > 0:  # no quota: -1 in v1, the word max in v2
                yield cores


def _memory_limits(root: Path) -> Iterator[int]:
    """Memory limits, in bytes, of the process's groups and those above; v1 has a huge number for none."""
    for folder in _groups(root, MEMORY):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                if (limit := int((folder / name).read_text())) > 0:
                    yield limit


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's control group for a controller, in v1 and v2, and of all visible groups above
    it. A container may see its own group at the mount, under a path that does not exist.
    """
    own = _own_groups(root)
    for kind, controllers, top, mount in _mounts(root):
        path = own.get("" if kind == "cgroup2" else controller)
        if path is None or (kind == "cgroup" and controller not in controllers):
            continue
        inside = path.removeprefix(top) if top != "/" else path
        folder = root / mount.lstrip("/")
        parts = [part for part in inside.split("/") if part not in ("", ".", "..")]
        yield from (folder.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))


def _own_groups(root: Path) -> dict[str, str]:
    """Path of the process's group by controller; "" for v2."""
    found = {}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found |= {each: path for each in controllers.split(",")}
    return found


def _mounts(root: Path) -> Iterator[tuple[str, list[str], str, str]]:
    """Mounted hierarchies: cgroup or cgroup2, controllers, the group at the mount, the mount point."""
    with suppress(OSError):
        for line in (root / "proc/self/mountinfo").read_text().splitlines():
            where, _, what = line.partition(" - ")
            kind, _, options = what.split(" ")[:3] if what.count(" ") >= 2 else ("", "", "")
            if kind in ("cgroup", "cgroup2"):
                top, mount = where.split(" ")[3:5]
                yield kind, options.split(","), top, mount
