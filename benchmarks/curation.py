"""Rates, memory and scaling of curating a corpus: processor seconds per MB and peak memory of each task at
two sizes; two ranks beside one.

python benchmarks/curation.py [--sizes 100 1000] [--pairs 5] [--folder .]
goals: the peak of each task but deduplicate grows to 1.2 times at most; deduplicate keeps to its planned
bytes a document; two ranks take at most 1/1.7 of the wall time of one

Sizes are MB of text: documents of paragraphs of the standard library in 16 files, 5 % of them copies with one
word changed. Pairs alternate; medians.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from curation_runs import Processes, write_corpus
from machine import keep, use_own_code

from atelier.engine.config.base import parse
from atelier.engine.config.curation import Curation, Deduplicate
from atelier.engine.data.curation.duplicates import bytes_per_document

MB = 1e6
use_own_code()

SIZES = [100, 1000]  # MB
SETTINGS = {
    "filters": {"quality": {"kind": "gopher_quality"}, "repetition": {"kind": "gopher_repetition"}},
    "deduplicate": {"most_removed": 1.0},
    "decontaminate": {"questions": {"python": {"source": str(PROJECT / "conf/questions/python.jsonl")}}},
}


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    words.add_argument("--pairs", type=int, default=5)
    words.add_argument("--folder", default=".")
    options = words.parse_args()
    curation = parse(Curation, SETTINGS, "curation")
    numbers: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for size in options.sizes:
            documents = write_corpus(folder / f"texts-{size}", int(size * MB), seed=1)
            run = Processes(folder / f"run-{size}", {"main": folder / f"texts-{size}"}, curation, shards=16)
            run.run()
            numbers[f"{size} MB"] = {
                "documents": documents,
                **{
                    task: {
                        "cpu_s_per_MB": round(each.cpu_s / size, 4),
                        "peak_MB": round(each.peak / MB, 1),
                        "wall_s": round(each.wall_s, 1),
                    }
                    for task, each in run.measured.items()
                },
                "disk_MB": round(
                    sum(p.stat().st_size for p in (folder / f"run-{size}").rglob("*.zst")) / MB, 1
                ),
            }
            print(size, numbers[f"{size} MB"], flush=True)
        numbers["planned bytes of a document"] = bytes_per_document(Deduplicate().bands)
        texts = folder / f"texts-{options.sizes[0]}"
        ratios: list[dict[str, float]] = []
        for pair in range(options.pairs):
            walls: dict[int, dict[str, float]] = {}
            for ranks in (1, 2) if pair % 2 else (2, 1):
                run = Processes(folder / "pair", {"main": texts}, curation, ranks=ranks, shards=16)
                run.run()
                walls[ranks] = {task: each.wall_s for task, each in run.measured.items()}
                shutil.rmtree(folder / "pair")
            ratio = {task: walls[1][task] / walls[2][task] for task in walls[1]}
            ratio["all"] = sum(walls[1].values()) / sum(walls[2].values())
            ratios.append({**ratio, "load": os.getloadavg()[0]})
            print(pair, {key: round(value, 2) for key, value in ratios[-1].items()}, flush=True)
    numbers["one rank / two ranks"] = {
        key: round(statistics.median(each[key] for each in ratios), 2)
        for key in (ratios[0] if ratios else ())
    }
    keep("curation" if options.sizes == SIZES else "curation_ranks", numbers)


if __name__ == "__main__":
    main()
