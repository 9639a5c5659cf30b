"""A student directly under the teacher beside one under an assistant; and the gain from attention, with a
layer of its own and without: held-out nats below controls of equal tokens.

python benchmarks/chain.py [--seeds 1 2 3] [--steps 384] [--store DIR] [--tiny]      15 minutes a seed

The assistant has half of the teacher's FLOPs and trains from step 0; the student has an eighth and starts at
half of the steps. The learning rates of teacher and assistant fall early, so that each is ahead of its
student.
"""

import argparse
import statistics
from typing import Any

from machine import keep
from online_distillation import ATTENTION, LATE, LONG, TAUGHT
from parts import Parts, interval, kept_seeds, options, student_model

LESSONS: dict[str, dict[str, dict[str, Any]]] = {
    "logits": {"logits": {}},
    "logits and attention": {"logits": {}, "attention": {"auxiliary": False}},
    "logits and attention, a layer for it": {"logits": {}, "attention": {"auxiliary": True}},
}


class Chain(Parts):
    """A teacher, an assistant and a student."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, sequence=128)
        self.assistant, self.pupil = (student_model(self.teacher, share, self.sequence) for share in (2, 8))
        self.late = {"start": round(LATE * self.steps)}

    def under(self, teacher: str, lesson: str, share: float = TAUGHT) -> dict[str, Any]:
        """Objective and teacher of a role that learns so."""
        parts = LESSONS[lesson]
        objective: dict[str, dict[str, Any]] = {"lm": {"kind": "lm", "weight": 1 - share}}
        for kind, more in parts.items():
            weight = share if kind == "logits" else ATTENTION
            objective[kind] = {"kind": kind, "weight": weight} | more
        return {"objective": objective, "teacher": teacher}

    def seed(self, seed: int) -> dict[str, float]:
        """The student's held-out nats in every way."""
        teacher = self.role(self.teacher, "teacher", LONG)
        assistant = self.role(self.assistant, "assistant", LONG, **self.under("teacher", "logits"))
        found = {
            f"alone, rate falls over {decay:.0%}": self.part(
                f"alone-{decay}", seed, {"pupil": self.role(self.pupil, "pupil", decay, **self.late)}
            )
            for decay in (0.25, LONG)
        }

        def taught(way: str, by: str, lesson: str, **others: Any) -> None:
            pupil = self.role(self.pupil, "pupil", **self.under(by, lesson), **self.late)
            name = way.replace(" ", "-").replace(",", "")
            found[way] = self.part(name, seed, {"teacher": teacher} | others | {"pupil": pupil})

        for lesson in LESSONS:
            taught(f"under the teacher: {lesson}", "teacher", lesson)
        taught("under an assistant: logits", "assistant", "logits", assistant=assistant)
        return {way: part["loss"]["pupil"] for way, part in found.items()}


def main() -> None:
    chosen = options(__doc__ or "", steps=384, store="chain")
    bench = Chain(chosen)
    seeds = kept_seeds("chain", bench.steps) if chosen.go_on else {}
    for seed in chosen.seeds:
        seeds[seed] = bench.seed(seed)
        keep("chain", summary(bench.steps, seeds), is_trial=chosen.tiny, made_by=bench.made_by)


def summary(steps: int, by_seed: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Of each way the loss, and how far it lies below the better control."""
    ways: dict[str, Any] = {}
    for way in next(iter(by_seed.values())):
        gains = [
            min(loss for name, loss in found.items() if name.startswith("alone")) - found[way]
            for found in by_seed.values()
        ]
        ways[way] = {
            "loss": round(statistics.mean(found[way] for found in by_seed.values()), 4),
            "below_control": round(statistics.mean(gains), 4),
            "interval": interval(gains),
        }
    return {"steps": steps, "ways": ways, "by_seed": by_seed}


if __name__ == "__main__":
    main()
