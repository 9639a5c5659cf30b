"""A student with 60 000 tokens of text, alone and with a teacher, by its best held-out loss (early stopping).

python benchmarks/scarce_data.py [--seeds 1 2 3] [--store DIR] [--tiny]     40 minutes
python benchmarks/scarce_data.py --seeds 3 --go-on      adds a seed to those of the kept result

  alone      without a teacher
  finished   from a teacher that was trained on the whole corpus
  online     from a teacher that trains at the same time, on the same 60 000 tokens
"""

import argparse
import statistics
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from machine import keep
from parts import Parts, interval, kept_seeds, options, student_model

from tests.engine.trainings import artifact

TOKENS = 60_000


class Scarce(Parts):
    """The whole corpus for the teacher, a piece of it for the student."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen)
        self.student = student_model(self.teacher, 4, self.sequence)
        self.whole = self.inputs["tokens"]
        self.piece = self._cut()

    def _cut(self) -> str:
        """The first documents of the training text, TOKENS tokens in all, and the held-out text."""
        [source] = Path(self.whole).glob("payload*")
        files = {path.name: path.read_bytes() for path in source.iterdir() if path.name != "body.json"}
        width = 2 if self.vocab <= 1 << 16 else 4
        ends = np.load(BytesIO(files["train.ends.npy"]), allow_pickle=False)
        kept = ends[ends < TOKENS]
        buffer = BytesIO()
        np.save(buffer, np.append(kept, TOKENS).astype(ends.dtype), allow_pickle=False)
        files |= {"train.bin": files["train.bin"][: TOKENS * width], "train.ends.npy": buffer.getvalue()}
        files = {name: data for name, data in files.items() if not name.startswith("train.bytes")}
        return artifact(self.store / "piece", "tokens", files, **self.record("tokens")["summary"])

    def seed(self, seed: int) -> dict[str, list[float]]:
        """Held-out losses of the student in every way, at every look."""
        teacher = self.role(self.teacher, "teacher", objective={"lm": {"kind": "lm"}})
        objective = {"lm": {"kind": "lm", "weight": 0.5}, "logits": {"kind": "logits", "weight": 0.5}}
        taught = self.role(self.student, "student", objective=objective, teacher="teacher")
        every = 4 if self.tiny else 16

        def looked(name: str, roles: dict[str, dict[str, Any]], frozen: str = "") -> dict[str, Any]:
            return self.part(name, seed, roles, frozen=frozen, eval_every=every, eval_sequences=100)

        self.inputs["tokens"] = self.whole
        self.part("whole-teacher", seed, {"teacher": teacher})
        finished = self.publish(seed, "whole-teacher")
        self.inputs["tokens"] = self.piece
        alone = looked("alone", {"student": self.role(self.student, "student")})
        from_finished = looked("finished", {"teacher": teacher, "student": taught}, finished)
        online = looked("online", {"teacher": teacher, "student": taught})
        parts = {"alone": alone, "finished": from_finished, "online": online}
        return {way: part["looks"]["student"] for way, part in parts.items()}


def main() -> None:
    chosen = options(__doc__ or "", steps=320, store="scarce-data")
    bench = Scarce(chosen)
    seeds: dict[int, Any] = {}
    for seed in chosen.seeds:
        seeds[seed] = bench.seed(seed)
        if chosen.go_on:
            seeds = kept_seeds("scarce_data", bench.steps) | seeds
        keep("scarce_data", summary(bench.steps, seeds), is_trial=chosen.tiny, made_by=bench.made_by)


def summary(steps: int, by_seed: dict[int, dict[str, list[float]]]) -> dict[str, Any]:
    """The best held-out loss of each way, and how far it lies below that of the student alone."""
    seeds = list(by_seed.values())
    numbers: dict[str, Any] = {"steps": steps, "tokens": TOKENS}
    for way in seeds[0]:
        best = [min(each[way]) for each in seeds]
        gains = [min(each["alone"]) - loss for each, loss in zip(seeds, best, strict=True)]
        numbers[way] = {
            "best_loss": round(statistics.mean(best), 4),
            "below_alone": round(statistics.mean(gains), 4),
            "interval": interval(gains),
            "last_loss": round(statistics.mean(each[way][-1] for each in seeds), 4),
        }
    return numbers | {"by_seed": by_seed}


if __name__ == "__main__":
    main()
