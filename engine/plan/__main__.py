"""Print the estimate of one training without a flow: `python -m atelier.engine.plan --row row.json --json`.
row.json is an object {"model", "parallel", "train", "pool"} of specs.
"""

import argparse
import json
import sys
from pathlib import Path

from atelier.engine.config.base import parse
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import estimate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m atelier.engine.plan", description=__doc__)
    parser.add_argument(
        "--row",
        required=True,
        help='a JSON file: {"model": {...}, "parallel": {...}, "train": {...}, "pool": {...}}',
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    chosen = parser.parse_args()
    try:
        row = json.loads(Path(chosen.row).read_text())
        pool = parse(Pool, row.get("pool", {}), "pool")
        parallel = parse(Parallel, {"shard": 1, "threads": 1} | row.get("parallel", {}), "parallel")
        role = parse(
            Role,
            {
                "model": row.get("model", {}),
                "objective": {"lm": {"kind": "lm"}},
                "optim": {"kind": "adamw", "lr": 1e-3},
            },
            "row",
        )
        answer = estimate(role, parse(Train, row.get("train", {}), "train"), parallel, pool, vocab=0).row()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"--row {chosen.row}: {error}; give a readable JSON file", file=sys.stderr)
        return 2
    print(
        json.dumps(answer)
        if chosen.json
        else "\n".join(f"{key:>14} {value}" for key, value in answer.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
