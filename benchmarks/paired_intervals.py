"""How often the paired 95 % interval of exams misses: resamples of two different models of equal accuracy,
with independent questions, and with four questions on each passage.

python benchmarks/paired_intervals.py [--resamples 10000]

Goal: 4.3 to 5.7 % of the resamples. Beside it what is missed if passages are ignored.
"""

import argparse
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "src"), str(TOP), str(Path(__file__).parent)]

from machine import keep

from tests.engine.config.test_intervals import misses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resamples", type=int, default=10_000)
    number = parser.parse_args().resamples
    found = {
        "resamples": number,
        "independent": misses(number, 11, questions=200, per_group=1),
        "passages of four": misses(number, 12, questions=200, per_group=4),
        "passages of four, ignored": misses(number, 13, questions=200, per_group=4, is_grouped=False),
    }
    for name, share in found.items():
        print(f"{name:28} {share}")
    keep("paired_intervals", found)


if __name__ == "__main__":
    main()
