"""A flow's `experiment=tiny` in a new store, the same again (nothing to do), and its plan: wall clock and CPU
seconds of each, three times: python benchmarks/tiny.py [--flow titan] [other checkout ...]

Other checkouts, each with its .venv, alternate with this one. Results of flows but titan are in
tiny_<flow>.json.
"""

import argparse
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from machine import keep

HERE = Path(__file__).parent.parent
REPEATS = 3


def run(checkout: Path, words: tuple[str, ...], root: str) -> dict[str, float]:
    """One command's wall clock and CPU seconds, its children's among them."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    env = os.environ | {"ATELIER_ROOT": root}
    done = subprocess.run(
        [str(checkout / ".venv" / "bin" / "atelier"), *words],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flow", default="titan")
    parser.add_argument("checkouts", nargs="*")
    given = parser.parse_args()
    tiny = (given.flow, "experiment=tiny")
    commands = {"tiny": tiny, "nothing to do": tiny, "plan": ("plan", *tiny)}
    checkouts = {"this": HERE} | {str(number): Path(word) for number, word in enumerate(given.checkouts, 1)}
    times: dict[str, dict[str, list[dict[str, float]]]] = {name: {} for name in checkouts}
    for turn in range(REPEATS):
        names = list(checkouts)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with tempfile.TemporaryDirectory() as root:
                for what, words in commands.items():
                    times[name].setdefault(what, []).append(run(checkouts[name], words, root))
                    print(turn, name, what, times[name][what][-1], flush=True)
    middle = {
        name: {
            what: {key: median(one[key] for one in found) for key in found[0]} for what, found in each.items()
        }
        for name, each in times.items()
    }
    keep("tiny" if given.flow == "titan" else f"tiny_{given.flow}", {"median": middle, "all": times})


if __name__ == "__main__":
    main()
