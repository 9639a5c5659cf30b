"""Effective training time on many devices: the formula against a random simulation.

python benchmarks/goodput.py [--hours 20000]      some seconds

Failure rate: Llama 3 (2407.21783, table 5 and section 3.3.4) on 16,384 GPUs in 54 days had 466 interruptions,
419 of them unexpected: one in 2.78 hours. It reports over 90 % effective training time, ByteRobust
(2509.16293) 97 %.
"""

import argparse
import random
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE)]

from machine import keep

from atelier.engine.plan.goodput import HOUR, Faults, between_failures

GPUS = 16384
MTBF_HOURS = 54 * 24 / 466 * GPUS  # of one device
SETTINGS = {
    "that give 97 %": (120.0, Faults(between=0, stall=1, detect=30, restart=120)),
    "slow checkpoints": (1800.0, Faults(between=0, stall=30, detect=30, restart=120)),
    "slow restart": (120.0, Faults(between=0, stall=1, detect=600, restart=900)),
    "slow store": (120.0, Faults(between=0, stall=1, detect=30, restart=120, lag=110)),
}


def drawn(faults: Faults, interval: float, hours: float, seed: int) -> float:
    """The share of time that is training, of failures drawn at random (exponential, at any moment)."""
    random_of = random.Random(seed)
    clock, kept, progress, written = 0.0, 0.0, 0.0, 0.0
    failure = random_of.expovariate(1 / faults.between)
    while clock < hours * HOUR:
        step = interval + faults.stall
        if clock + step < failure:
            clock, progress = clock + step, progress + interval
            kept, written = progress, clock + faults.lag
            continue
        if failure < written:  # the last checkpoint was still on its way
            kept -= interval
        clock, progress = failure + faults.detect + faults.restart, max(kept, 0.0)
        failure = clock + random_of.expovariate(1 / faults.between)
    return progress / clock


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=20000)
    keep("goodput", measure(parser.parse_args().hours))


def measure(hours: float) -> dict[str, Any]:
    found: dict[str, Any] = {"devices": GPUS, "mtbf_hours": round(MTBF_HOURS)}
    between = between_failures(MTBF_HOURS, GPUS)
    for name, (interval, base) in SETTINGS.items():
        faults = Faults(
            between=between, stall=base.stall, detect=base.detect, restart=base.restart, lag=base.lag
        )
        for label, seconds in (("as set", interval), ("best", faults.best_interval)):
            found[f"{name}, {label}"] = {
                "interval_s": round(seconds, 1), "stall_s": faults.stall, "detect_s": faults.detect,
                "restart_s": faults.restart, "lag_s": faults.lag,
                "predicted": round(100 * faults.effective(seconds), 2),
                "drawn": round(100 * drawn(faults, seconds, hours, seed=1), 2),
            }  # fmt: skip
    return found


if __name__ == "__main__":
    main()
