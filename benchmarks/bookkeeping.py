"""Bookkeeping of a curated corpus: for each document, in = kept + removed by reason, byte for byte through
the DAG, with 1, 2 and 4 ranks, 3 and 17 shards, and SIGKILL of all ranks at drawn moments: equal bytes.

python benchmarks/bookkeeping.py [--documents 100000] [--kills 20] [--seed 1] [--folder .]

The corpus is drawn: two sources, a sixth of it copies, a tenth junk. Prints the counts by reason.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from curation_runs import Killed, Processes
from machine import keep, use_own_code

from atelier.engine.config.base import parse
from atelier.engine.config.curation import Curation
from tests.engine.data.curation.drawn import write_sources

use_own_code()


def digest(run: Processes) -> dict[str, str]:
    """A digest of each corpus and of each stage's verdicts, whatever the shards."""
    found: dict[str, str] = {}
    for name in run.sources:
        found[name] = _hashed(run.lines(name))
        found[f"verdicts.{name}"] = _hashed(_placeless(run.verdicts(f"verdicts.{name}")))
    for stage in ("copies", "overlaps"):
        for place in range(len(run.sources)):
            found[f"{stage}/{place}"] = _hashed(_placeless(run.verdicts(stage, f"{stage}/{place}")))
    return found


def _placeless(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in each.items() if key != "row"} for each in verdicts]


def _hashed(lines: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(lines, sort_keys=True).encode()).hexdigest()[:16]


def check_books(run: Processes) -> dict[str, dict[str, int]]:
    """The counts by reason of all sources. Each document that was read is kept or has a verdict; counts and
    bytes add up.
    """
    total: dict[str, dict[str, int]] = {}
    for place, name in enumerate(run.sources):
        read = {line["id"]: len(line["text"].encode()) for line in run.verdicts(f"documents.{name}")}
        removed: dict[str, dict[str, Any]] = {}
        stages = [(stage, f"{stage}/{place}") for stage in ("copies", "overlaps")]
        for stage, folder in [(f"verdicts.{name}", "shards"), *stages]:
            for verdict in run.verdicts(stage, folder):
                if verdict["reason"]:
                    assert verdict["id"] not in removed, f"{name}/{verdict['id']} is removed twice"
                    assert verdict["bytes"] == read[verdict["id"]]
                    removed[verdict["id"]] = verdict
        kept: dict[str, int] = {}
        for line in run.lines(name):
            base = line["id"].split("/")[0].split("#")[0]
            kept[base] = kept.get(base, 0) + len(line["text"].encode())
        assert not kept.keys() & removed.keys() and kept.keys() | removed.keys() == read.keys()
        steps = run.made[f"corpus.{name}"].record.summary["waterfall"]
        assert (steps[0]["documents"], steps[0]["bytes"]) == (len(read), sum(read.values()))
        assert (steps[-1]["documents"], steps[-1]["bytes"]) == (len(kept), sum(kept.values()))
        for key in ("documents", "bytes"):
            assert steps[0][key] == steps[-1][key] + sum(step[key] for step in steps[1:-1])
        for step in steps:
            of_it = [v for v in removed.values() if v["reason"] == step["reason"]]
            if step["documents"] and step["reason"] not in ("read", "kept"):
                assert (len(of_it), sum(v["bytes"] for v in of_it)) == (step["documents"], step["bytes"])
            before = total.setdefault(step["reason"], {"documents": 0, "bytes": 0})
            total[step["reason"]] = {key: before[key] + step[key] for key in before}
    return total


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--documents", type=int, default=100_000)
    words.add_argument("--kills", type=int, default=20)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--folder", default=".")
    options = words.parse_args()
    settings = {
        "filters": {
            "words": {"kind": "gopher_quality", "min_words": 30, "min_stop_words": 0},
            "repetition": {"kind": "gopher_repetition"},
        },
        "decontaminate": {"questions": {}},
    }
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        sources = write_sources(folder / "texts", options.seed, options.documents)
        questions = folder / "questions.jsonl"
        settings["decontaminate"]["questions"]["quiz"] = {"source": str(questions)}
        texts = [
            path.read_text()
            for path in sorted(sources["other"].glob("*.txt"))[:: max(1, options.documents // 900)]
        ]
        answers = [
            " ".join(longest) for t in texts if len(longest := max(t.split("."), key=len).split()) >= 13
        ]
        questions.write_text(
            "".join(json.dumps({"id": str(n), "answer": a}) + "\n" for n, a in enumerate(answers))
        )
        curation = parse(Curation, settings, "curation")
        first = Processes(folder / "first", sources, curation)
        first.run()
        wanted, books = digest(first), check_books(first)
        print(json.dumps(books, indent=1))
        shutil.rmtree(folder / "first")
        for ranks, shards in ((2, 3), (4, 17)):
            run = Processes(folder / "other", sources, curation, ranks=ranks, shards=shards)
            run.run()
            assert digest(run) == wanted, f"{ranks} ranks and {shards} shards"
            check_books(run)
            shutil.rmtree(folder / "other")
            print(f"{ranks} ranks, {shards} shards: equal", flush=True)
        draw, kills = random.Random(options.seed), 0
        run = Processes(folder / "killed", sources, curation, ranks=2, shards=17)
        length = sum(each.wall_s for each in first.measured.values())
        began = time.monotonic()
        while True:
            run.kill_at = time.monotonic() + draw.uniform(0.2, length / 2) if kills < options.kills else 0.0
            try:
                run.run()
                if kills >= options.kills:
                    break
                shutil.rmtree(folder / "killed")  # it ended before all kills: once more from the beginning
                run = Processes(folder / "killed", sources, curation, ranks=2, shards=17)
            except Killed:
                kills += 1
        assert digest(run) == wanted, "after kills"
        print(f"{kills} kills in {time.monotonic() - began:.0f} s: equal", flush=True)
    numbers = {
        "documents": options.documents,
        "kills": kills,
        "counts": books,
        "ranks x shards": ["1 x auto", "2 x 3", "4 x 17"],
        "equal": True,
    }
    keep("bookkeeping", numbers)


if __name__ == "__main__":
    main()
