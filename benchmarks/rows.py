"""Rows a second of every kind of rows, and of windows, on one core, from the standard library.

python benchmarks/rows.py [--sequence 256] [--batch 8] [--repeats 5]      goal: at most 150 us a row
"""

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).parent)]

import numpy as np
from machine import keep

from atelier.engine.config.data import CLS, MASK, SEP, Source, Tokenizer
from atelier.engine.config.generation import TAGS
from atelier.engine.config.record import Record, identify
from atelier.engine.config.registry import ObjectiveSpec, spec_class
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.datasets.load import kinds, rows_of
from atelier.engine.data.tokens import Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.io.source_files import content_id, files_of
from atelier.engine.prepare import prepare

NUM_ROWS = 2048


def made(
    folder: Path, task: str, kind: str, config: dict[str, Any], **inputs: ArtifactInput
) -> ArtifactInput:
    """The artifact that a verb of atelier.engine.prepare makes."""
    target = folder / kind
    run = RunFile(
        schema=1,
        task=task,
        version=1,
        config=config,
        inputs={name: source.url for name, source in inputs.items()},
        outputs={kind: str(target)},
        scratch=str(folder / "scratch"),
    )
    prepare(run, io.StringIO())
    body = json.loads((target / "body.json").read_text())
    record = Record(
        kind=kind,
        name=kind,
        fingerprint=identify(kind, 1, {}, {}),
        version=1,
        identity={},
        parents={},
        files=tuple(body["files"]),
        summary=body["summary"],
    )
    (target / "record.json").write_text(record.sealed().text())
    return open_input(str(target))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("sequence", 256), ("batch", 8), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, source = Path(place), Source()
        files = [[path, content_id(path)] for path in files_of(source)]
        corpus = made(
            folder, "curate", "corpus", {"source": source.model_dump(), "held_out": 0.05, "files": files}
        )
        spec = Tokenizer(specials=(MASK, CLS, SEP, *TAGS)).model_dump(mode="json")
        tokenizer = made(folder, "learn_tokenizer", "tokenizer", {"tokenizer": spec}, corpus_0=corpus)
        tokens = made(folder, "encode", "tokens", {}, corpus=corpus, tokenizer=tokenizer)
        sources = {
            "tokens": tokens,
            "triples": made(folder, "extract", "triples", {}, corpus=corpus),
            "attributes": made(folder, "describe", "attributes", {}, corpus=corpus),
        }  # imitations need a model
        vocabulary = Vocabulary.of(tokenizer, folder)
        sets: dict[str, Any] = {"windows": Windows(tokens, folder, "train", asked.sequence)}
        for kind in kinds():
            objective = spec_class("objective", kind)()
            assert isinstance(objective, ObjectiveSpec), kind
            if objective.source not in sources:
                continue
            sets[kind] = rows_of(kind).open_rows(
                objective,
                sources[objective.source],
                vocabulary,
                folder,
                split="train",
                sequence=asked.sequence,
                seed=1,
            )
        times: dict[str, list[float]] = {name: [] for name in sets}
        for turn in range(asked.repeats):
            order = [*sets][turn % len(sets) :] + [*sets][: turn % len(sets)]
            for name in order:
                times[name].append(rate(sets[name], asked.batch))
    keep("rows", {name: round(statistics.median(rates)) for name, rates in times.items()})


def rate(rows: Any, batch: int) -> float:
    """Rows a second of processor time, in batches of random rows."""
    indices = np.random.default_rng(1).integers(0, len(rows), NUM_ROWS)
    epochs, begin = np.zeros(batch, dtype=np.int64), time.process_time()
    for first in range(0, NUM_ROWS, batch):
        rows.batch(indices[first : first + batch], epochs)
    return NUM_ROWS / (time.process_time() - begin)


if __name__ == "__main__":
    main()
