"""Run gangs with each rank bound to a core, time their steps, and compare alternating ways."""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.config.run_file import RunFile
from tests.checkout import TOP


def two_cores() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    return cores


@contextmanager
def busy(core: int) -> Iterator[None]:
    """A process that computes all the time on this core."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(other.pid, {core})
        yield
    finally:
        other.kill()
        other.wait()


def in_turns(
    ways: Iterable[str], turns: int, measure: Callable[[str, Path], dict[str, float]]
) -> tuple[dict[str, list[dict[str, float]]], dict[str, dict[str, float]]]:
    """What `measure(way, an empty folder)` gives for every way, in turns of which each begins with another
    way; and the medians.
    """
    names = list(ways)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in names}
    for turn in range(turns):
        for way in names[turn:] + names[:turn]:
            with tempfile.TemporaryDirectory() as folder:
                found[way].append(measure(way, Path(folder)))
            print(way, {name: round(value, 3) for name, value in found[way][-1].items()}, flush=True)
    medians = {
        way: {name: round(statistics.median(one[name] for one in many), 4) for name in many[0]}
        for way, many in found.items()
    }
    return found, medians


def timings(folder: Path, run: RunFile, cores: list[int]) -> list[dict[str, float]]:
    """Train the one role of a run file, a rank a core; the timing of each step."""
    (folder / "run.json").write_text(run.model_dump_json(by_alias=True))
    base = os.environ | {
        "WORLD_SIZE": str(len(cores)), "ATELIER_RENDEZVOUS": f"file://{folder}/meeting",
        "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    command = ["-m", "atelier.engine.train", str(folder / "run.json")]
    ranks = [
        subprocess.Popen(
            ["taskset", "--cpu-list", str(core), sys.executable, *command],
            cwd=TOP,
            env=base | {"RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank, core in enumerate(cores)
    ]
    try:
        if any([rank.wait() for rank in ranks]):
            raise SystemExit("a rank ended with an error")
    finally:
        for rank in ranks:
            rank.kill()
    [place] = (folder / "trajectory").iterdir()
    lines = list(merge((path.name, path.read_text()) for path in sorted((place / FOLDER).iterdir())))
    return [timing for line in lines if (timing := line.get("timing"))]
