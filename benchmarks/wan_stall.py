"""The share of the time in which two sites wait for each other, at 100, 10 and 1 Mbit/s, over ten turns.

python benchmarks/wan_stall.py [--turns 10] [--steps 100] [--tiny]     as root; 40 minutes, two quiet cores

The trainings of benchmarks/wan.py: namespaces, caps, model, fragments, the codec chosen by the link's speed.
The caps alternate, each turn in another order. `stall`: the share of the time between step 50 and the last
round in which a site waited for the other's contributions, for the site that waited longer, by turn; `most`:
the aim. Without a cap sites wait for each other too: `no cap` is what the machine adds.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import keep, use_own_code
from parts import interval
from wan import CAPS, give_sizes, namespaces, run

MOST = {"100": 0.01, "10": 0.03, "1": 0.1}


def told(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The stall of a cap over its turns, and what was sent."""
    shares = [one["stall"] for one in runs]
    found: dict[str, Any] = {
        "stall": [round(share, 4) for share in shares],
        "mean": round(statistics.mean(shares), 4),
        "interval": interval(shares),
        "worst": round(max(shares), 4),
        "steps_per_s": round(statistics.median(one["steps_per_s"] for one in runs), 3),
        "codecs": runs[-1]["codecs"]["a"],
    }
    if name in MOST:
        found |= {"most": MOST[name], "turns_within": sum(share <= MOST[name] for share in shares)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100, help="of each training; a multiple of 50")
    parser.add_argument("--tiny", action="store_true", help="a small model: does it run?")
    size = parser.parse_args()
    use_own_code()
    give_sizes(size)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CAPS}
    with namespaces():
        for turn in range(size.turns):
            for name in [*CAPS][turn % len(CAPS) :] + [*CAPS][: turn % len(CAPS)]:
                with tempfile.TemporaryDirectory() as folder:
                    runs[name].append(run(Path(folder), size, {0: CAPS[name]}))
                print(turn, name, {key: runs[name][-1][key] for key in ("stall", "steps_per_s")}, flush=True)
    numbers = {
        "params": size.model.num_params(),
        "steps": size.steps,
        "turns": size.turns,
        "caps_mbit": {name: told(name, each) for name, each in runs.items()},
    }
    keep("wan_stall", numbers, is_trial=size.tiny)


if __name__ == "__main__":
    main()
