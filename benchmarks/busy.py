"""Slowdown of `generate` and of a training's steps by four busy processes: python benchmarks/busy.py

Each is measured alone and beside them, alternating; medians of three.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from machine import keep, use_own_code

HERE = Path(__file__).parent.parent
REPEATS, BUSY = 3, 4
TRAIN = (
    "pretrain",
    "experiment=tiny",
    "tracker=none",
    "train.steps=60",
    "train.checkpoint_every=60",
    "score.baselines=false",
)

use_own_code()


def atelier(root: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "atelier", *words], cwd=HERE, env=os.environ | {"ATELIER_ROOT": root},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return done


@contextmanager
def busy(number: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    # each in a session of its own, which the kernel weighs like a command's
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def rate(root: str) -> float:
    """Tokens a second of `generate`."""
    said = atelier(root, "generate", "model", "--prompt", "def ", "--max-tokens", "300").stderr
    found = re.search(r"(\d+) a second", said)
    assert found, said
    return float(found[1])


def step_s(root: str, seed: int) -> float:
    """The median of a training's steps, seconds."""
    atelier(root, *TRAIN, f"train.seed={seed}", f"name=m{seed}")
    newest = max(Path(root).glob("trajectory/*/metrics"), key=lambda folder: folder.stat().st_mtime)
    lines = [json.loads(line) for path in newest.iterdir() for line in path.read_text().splitlines()]
    return median(line["timing"]["step_s"] for line in lines[5:])


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        atelier(root, *TRAIN)
        rates: dict[int, list[float]] = {0: [], BUSY: []}
        steps: dict[int, list[float]] = {0: [], BUSY: []}
        for turn in range(REPEATS):
            for number in (0, BUSY) if turn % 2 else (BUSY, 0):
                with busy(number):
                    rates[number].append(rate(root))
                    steps[number].append(step_s(root, 10 * turn + number + 2))
    numbers = {
        "generate_tokens_per_s": {"quiet": median(rates[0]), "busy": median(rates[BUSY])},
        "train_step_s": {"quiet": median(steps[0]), "busy": median(steps[BUSY])},
        "generate_share": round(median(rates[BUSY]) / median(rates[0]), 3),
        "step_times": round(median(steps[BUSY]) / median(steps[0]), 2),
    }
    keep("busy", numbers | {"rates": rates, "steps": steps})


if __name__ == "__main__":
    main()
