"""Step time of a training with a watcher beside it and without one, alternating within one training: the
watcher examines its checkpoints, is stopped (SIGSTOP, with all its processes), goes on ...

python benchmarks/watching.py [--span 20] [--pairs 8]      goal: the median moves by less than 3 %
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).parent)]

from machine import keep, use_own_code

from atelier.engine.config.metric import FOLDER, merge

GOAL = 0.03
WARM_S = 5.0  # after each switch: these steps count for neither side
TRAIN = (
    "experiment=tiny", "tracker=none", "train.steps=1000000", "train.checkpoint_every=200", "train.keep=4",
    "parallel.threads=1", "score.baselines=false", "optim.schedule.kind=constant",
)  # fmt: skip
QUESTIONS = 200


def questions(folder: Path) -> str:
    place = folder / "numbers.jsonl"
    rows = (
        {"id": str(n), "question": f"What is {n} + 1?", "options": [str(n + 1), str(n)], "answer": "A"}
        for n in range(QUESTIONS)
    )
    place.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(place)


def start(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    env = os.environ | {"ATELIER_ROOT": str(folder / "store"), "PREFECT_API_URL": ""}
    command = [sys.executable, "-m", "atelier", *words]
    with open(folder / f"{words[0]}.txt", "wb") as out:
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)


def with_children(pid: int) -> list[int]:
    """The process and its descendants."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def signalled(process: subprocess.Popen[bytes], number: int) -> None:
    for pid in with_children(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def step_times(folder: Path) -> list[tuple[float, float]]:
    """When each step ended, seconds since 1970, and how long it took."""
    [trajectory] = (folder / "store" / "trajectory").glob("*")
    files = sorted((trajectory / FOLDER).glob("*.jsonl"))
    lines = merge((path.name, path.read_text()) for path in files)
    ends = [timing["time"] for line in lines if "time" in (timing := line.get("timing", {}))]
    return [(after, after - before) for before, after in itertools.pairwise(ends)]


def measured(folder: Path, span_s: float, pairs: int) -> dict[str, Any]:
    training = start(folder, "pretrain", *TRAIN)
    while not list(folder.glob("store/trajectory/*/checkpoints/step-*")):
        assert training.poll() is None, (folder / "pretrain.txt").read_text()
        time.sleep(0.5)
    watcher = start(folder, "watch", "model", questions(folder), "tracker=none", "--json")
    said = folder / "watch.txt"
    while said.read_text().count('"examined"') < 2:
        assert watcher.poll() is None, said.read_text()
        time.sleep(0.5)
    spans: list[tuple[str, float, float]] = []
    try:
        for number in range(2 * pairs):
            side = ("with", "without")[(number + number // 2) % 2]  # rotated: with without without with ...
            signalled(watcher, signal.SIGCONT if side == "with" else signal.SIGSTOP)
            time.sleep(WARM_S)
            begun = time.time()
            time.sleep(span_s)
            spans.append((side, begun, time.time()))
        signalled(watcher, signal.SIGCONT)
        examined = said.read_text().count('"examined"')
    finally:
        for process in (watcher, training):
            os.killpg(process.pid, signal.SIGINT)
        for process in (training, watcher):
            process.wait()
    times = step_times(folder)
    medians: dict[str, list[float]] = {"with": [], "without": []}
    for side, begun, ended in spans:
        within = [took for at, took in times if begun < at <= ended]
        medians[side].append(1000 * statistics.median(within))
    moved = [one / other - 1 for one, other in zip(medians["with"], medians["without"], strict=True)]
    return {
        "pairs": pairs,
        "seconds_of_a_span": span_s,
        "steps": len(times),
        "examined": examined,
        "step_ms": {side: round(statistics.median(found), 3) for side, found in medians.items()},
        "step_ms_by_span": {side: [round(each, 3) for each in found] for side, found in medians.items()},
        "moved": round(statistics.median(moved), 4),
        "goal": GOAL,
        "load_of_others": os.getloadavg(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--span", type=float, default=20.0, help="seconds")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--trial", action="store_true", help="keep nothing")
    chosen = parser.parse_args()
    use_own_code()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        numbers = measured(Path(folder), chosen.span, chosen.pairs)
    keep("watching", numbers | {"load_before": round(before, 2)}, is_trial=chosen.trial)


if __name__ == "__main__":
    main()
