"""A student that has 60 000 tokens to learn from, alone and with a teacher; the best of its held-out losses
counts for each (early stopping).

python benchmarks/scarce_data.py [--seeds 1 2 3] [--store DIR] [--tiny]     20 minutes

  alone      without a teacher
  finished   from a teacher that was trained on the whole corpus
  online     from a teacher that learns beside it, from the same 60 000 tokens
"""

import argparse
import statistics
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from machine import keep
from parts import Parts, interval, student_model

from tests.engine.house import artifact

TOKENS = 60_000


class Scarce(Parts):
    """The whole corpus for the teacher, a piece of it for the student."""

    def __init__(self, store: Path, steps: int, *, tiny: bool) -> None:
        super().__init__(store, steps, tiny=tiny)
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
        looks = {"eval_every": 4 if self.tiny else 16, "eval_sequences": 100}
        self.inputs["tokens"] = self.whole
        self.part("whole-teacher", seed, {"teacher": teacher})
        finished = self.publish(seed, "whole-teacher")
        self.inputs["tokens"] = self.piece
        alone = self.part("alone", seed, {"student": self.role(self.student, "student")}, **looks)
        from_finished = self.part(
            "finished", seed, {"teacher": teacher, "student": taught}, frozen=finished, **looks
        )
        online = self.part("online", seed, {"teacher": teacher, "student": taught}, **looks)
        parts = {"alone": alone, "finished": from_finished, "online": online}
        return {way: part["looks"]["student"] for way, part in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--store", type=Path, default=Path("scarce-data"))
    parser.add_argument("--tiny", action="store_true", help="a minute: tries the script, shows nothing")
    chosen = parser.parse_args()
    bench = Scarce(chosen.store.resolve(), chosen.steps, tiny=chosen.tiny)
    seeds = [bench.seed(seed) for seed in chosen.seeds]
    numbers: dict[str, Any] = {"seeds": chosen.seeds, "steps": bench.steps, "tokens": TOKENS}
    for way in seeds[0]:
        best = [min(each[way]) for each in seeds]
        gains = [min(each["alone"]) - loss for each, loss in zip(seeds, best, strict=True)]
        numbers[way] = {
            "best_loss": round(statistics.mean(best), 4),
            "below_alone": round(statistics.mean(gains), 4),
            "interval": round(interval(gains), 4),
            "last_loss": round(statistics.mean(each[way][-1] for each in seeds), 4),
        }
    keep("scarce_data", numbers, is_trial=chosen.tiny)


if __name__ == "__main__":
    main()
