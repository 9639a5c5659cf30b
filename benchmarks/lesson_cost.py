"""Cost of online distillation: CPU seconds of a teacher that trains while three students learn from its
logits, beside the same four trained in one process without distillation.

python benchmarks/lesson_cost.py [--steps 384] [--store DIR] [--tiny]      twenty minutes, on a quiet machine

The models and steps of online_distillation.py with its first seed. Both ways alternate, three times, each
time in another order; medians count. Goal: at most 1.08 times the CPU seconds. One thread each.
"""

import statistics
from typing import Any

from machine import keep
from online_distillation import LONG, Bench
from parts import options

TURNS = 3


def main() -> None:
    chosen = options(__doc__ or "", steps=384, store="lesson-cost")
    chosen.threads = 1
    bench = Bench(chosen)
    teacher = bench.role(bench.teacher, "teacher", LONG, objective={"lm": {"kind": "lm"}})
    ways: dict[str, dict[str, Any]] = {
        "without lessons": {name: bench.role(model, name) for name, model in bench.students.items()},
        "online": {name: bench.student(name, "logits") for name in bench.students},
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(1 if chosen.tiny else TURNS):
        for way in list(ways)[:: 1 if turn % 2 else -1]:
            done = bench.part(f"{way} {turn}", 1, {"teacher": teacher} | ways[way])
            found[way].append(round(done["cpu_s"], 1))
    medians = {way: statistics.median(seconds) for way, seconds in found.items()}
    numbers = {
        "steps": bench.steps, "cpu_s": found, "medians": medians,
        "online / without lessons": round(medians["online"] / medians["without lessons"], 4),
    }  # fmt: skip
    keep("lesson_cost", numbers, is_trial=chosen.tiny, made_by=bench.made_by)


if __name__ == "__main__":
    main()
