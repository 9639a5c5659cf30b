"""Search for foreign input that is handled wrongly: python benchmarks/foreign.py --minutes 60 --seed 1

Draws cases of tests/foreign/kinds in turn (`--kind` chooses some). Prints those that end wrongly: keep them
in tests/foreign/found. benchmarks/results/foreign.json gets the outcomes of each kind and its cases a minute.
"""

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path

from machine import keep

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.foreign.search import Case, drawn, kind, names


def tried(name: str, case: Case) -> str:
    """How the case ended: works, refused, or the error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return kind(name).check(case, Path(folder))
        except Exception as error:
            return f"wrong: {type(error).__name__}: {str(error)[:300]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", nargs="*", default=names(), choices=names())
    asked = parser.parse_args()
    sources = {name: drawn(name, asked.seed) for name in asked.kind}
    ends = {name: collections.Counter() for name in asked.kind}
    seconds = dict.fromkeys(asked.kind, 0.0)
    wrong = []
    end = time.monotonic() + 60 * asked.minutes
    while time.monotonic() < end:
        name = min(asked.kind, key=lambda name: seconds[name])  # equal time for each kind
        case, begin = next(sources[name]), time.monotonic()
        outcome = tried(name, case)
        seconds[name] += time.monotonic() - begin
        ends[name][outcome.split(":")[0]] += 1
        if outcome.startswith("wrong"):
            wrong.append({"kind": name, "case": case, "was": outcome})
            print(json.dumps(wrong[-1]), flush=True)
    rows = {
        name: {**ends[name], "cases_a_minute": round(60 * ends[name].total() / max(seconds[name], 1e-9))}
        for name in asked.kind
    }
    keep("foreign", {"seed": asked.seed, "minutes": asked.minutes, "kinds": rows, "wrong": wrong})
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
