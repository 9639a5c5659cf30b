"""Find fingerprints of small runs that a change of code moves: python benchmarks/fingerprints.py

Compares with benchmarks/results/fingerprints.json, which names its commit; `--keep` rewrites it. Fingerprints
hold the content of the corpus, so they depend on the version of Python's standard library.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from machine import about

from atelier.flows.run.compose import compose
from atelier.flows.run.draw import collect_nodes
from atelier.infra.code.provenance import code_provenance
from atelier.infra.store.run_manifest import row_name
from atelier.infra.store.store import Store

TINY = "experiment=tiny"
RUNS = {flow: TINY for flow in ("corpus", "pretrain", "distill", "titan", "semoe", "cpm2", "nebula")} | {
    "distill detector": "experiment=detector"
}
KEPT = Path(__file__).parent / "results" / "fingerprints.json"


def found() -> dict[str, dict[str, str]]:
    """By run, the fingerprint of every product that its nodes would make."""
    with tempfile.TemporaryDirectory() as root:
        os.environ["ATELIER_ROOT"] = root
        return {
            run: {
                row_name(node, key): product.fingerprint[:16]
                for node in collect_nodes(compose(run.split()[0], [experiment]), Store(root))
                for key, product in node.products.items()
            }
            for run, experiment in RUNS.items()
        }


def main() -> int:
    now = found()
    if "--keep" in sys.argv[1:]:
        KEPT.write_text(
            json.dumps({**about(), "commit": code_provenance()["commit"], "fingerprints": now}, indent=1)
            + "\n"
        )
        return 0
    before = json.loads(KEPT.read_text())
    print(f"since commit {before['commit'][:8]}, Python {before['python']}")
    for flow, rows in now.items():
        old = before["fingerprints"].get(flow, {})
        moved = sorted(name for name in {*rows, *old} if rows.get(name) != old.get(name))
        names = f"; moved: {', '.join(moved)}" if moved else ""
        print(f"{flow:10} {len(rows) - len(moved)} of {len(rows)} kept{names}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
