"""Students that learn while their teacher trains, beside every other way: held-out loss, CPU seconds, teacher
forwards and when the last student is ready.

python benchmarks/online_distillation.py [--seeds 1 2 3] [--steps 384] [--store DIR] [--tiny]  40 min a seed
python benchmarks/online_distillation.py --seeds 3 --go-on      adds a seed to those of the kept result

Students of about 1/4, 1/8 and 1/16 of the teacher's FLOPs see the same tokens in every way:
  a  online, from the gate on                     (logits, attention + auxiliary layer, both)
  b  from the finished teacher, one shared pass   (likewise)
  c  from the finished teacher, a pass for each
  d  without a teacher; "longer": with the teacher's schedule
  e  online, from step 0
  f  alone, for as many CPU seconds as a took for student and distillation together
Every part is one engine.train process whose result is kept in DIR; run again, what is there is not made anew.
Every seed is kept in benchmarks/results as soon as the ways that the goals are about are there (a and b with
logits, d, and training all without distillation), and again when it is complete.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

from machine import keep
from parts import Parts, interval, kept_seeds, options, student_model

WAYS = {"logits": ("logits",), "attention": ("attention",), "both": ("logits", "attention")}
GATE = 0.3  # nats that a student is behind when its lessons begin
LONG = 0.7  # of the teacher's steps, in which its rate falls: it is ahead of its students early
SHARES = {"quarter": 4, "eighth": 8, "sixteenth": 16}


class Bench(Parts):
    """All ways to get three students."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, sequence=128)
        self.students = {
            name: student_model(self.teacher, share, self.sequence) for name, share in SHARES.items()
        }

    def student(self, name: str, way: str, **more: Any) -> dict[str, Any]:
        """A student that learns from `teacher` in this way."""
        lessons = {kind: {"kind": kind, "weight": 0.5} for kind in WAYS[way]}
        objective = {"lm": {"kind": "lm", "weight": 0.5}} | lessons
        return self.role(self.students[name], name, objective=objective, teacher="teacher", **more)

    def seed(self, seed: int) -> Iterator[dict[str, Any]]:
        """The ways with one seed: first those that the goals are about, then all of them."""
        teacher = self.role(self.teacher, "teacher", LONG, objective={"lm": {"kind": "lm"}})
        alone = {name: self.role(model, name) for name, model in self.students.items()}
        longer = {name: self.role(model, name, LONG) for name, model in self.students.items()}
        found: dict[str, Any] = {"t": self.part("teacher-alone", seed, {"teacher": teacher})}
        finished = self.publish(seed, "teacher-alone")

        def learn(way: str, kind: str, **more: Any) -> dict[str, Any]:
            gate = {} if more else {"gate": GATE}
            students = {name: self.student(name, kind, **gate) for name in self.students}
            return self.part(f"{way}-{kind}", seed, {"teacher": teacher} | students, **more)

        found["a logits"] = learn("a", "logits")
        found["b logits"] = learn("b", "logits", frozen=finished)
        found["d"] = self.part("d", seed, alone)
        found["d longer"] = self.part("d-longer", seed, longer)
        found["joint"] = self.part("joint", seed, {"teacher": teacher} | alone)
        yield found
        early = {name: self.student(name, "logits") for name in self.students}
        found["e logits"] = self.part("e", seed, {"teacher": teacher} | early)
        for kind in ("attention", "both"):
            found[f"a {kind}"] = learn("a", kind)
            found[f"b {kind}"] = learn("b", kind, frozen=finished)
        for name in self.students:
            one = {"teacher": teacher, name: self.student(name, "logits")}
            found[f"c {name}"] = self.part(f"c-{name}", seed, one, frozen=finished)
        for name, model in self.students.items():
            each = self.part(f"alone-{name}", seed, {name: self.role(model, name)})
            spent = (found["a logits"]["cpu_s"] - found["t"]["cpu_s"]) * self._share(name)
            steps = max(self.steps, round(self.steps * spent / each["cpu_s"]))
            found[f"f {name}"] = self.part(f"f-{name}", seed, {name: self.role(model, name)}, steps=steps) | {
                "steps": steps
            }
        yield found

    def _share(self, name: str) -> float:
        """A student's part of what all students compute."""
        flops = {key: model.flops_per_token(self.sequence) for key, model in self.students.items()}
        return flops[name] / sum(flops.values())


def table(seeds: list[dict[str, Any]], students: list[str]) -> dict[str, Any]:
    """Held-out loss of every student in every way: mean, interval and the paired difference to d."""
    rows: dict[str, Any] = {}
    for way in dict.fromkeys(way for each in seeds for way in each):
        for name in students:
            shown = [each for each in seeds if way in each and name in each[way]["loss"]]
            if not shown:
                continue
            losses = [each[way]["loss"][name] for each in shown]
            gains = [each["d"]["loss"][name] - each[way]["loss"][name] for each in shown]
            rows[f"{way}: {name}"] = {
                "seeds": len(shown),
                "loss": round(statistics.mean(losses), 4),
                "below_d": round(statistics.mean(gains), 4),
                "interval": interval(gains),
            }
    return rows


def costs(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """CPU seconds of each way with its teacher's training. Parts run hours apart, perhaps beside other work:
    what lessons alone cost is measured by lesson_cost.py.
    """

    def total(each: dict[str, Any], way: str) -> float:
        before = each["t"]["cpu_s"] if way[0] in "bc" else 0.0
        parts = [key for key in each if key == way or (way == "c" and key.startswith("c "))]
        return before + sum(each[key]["cpu_s"] for key in parts)

    whole = [each for each in seeds if "c quarter" in each]  # of which every way is there
    ways = [way for way in seeds[0] if way[0] in "abe" or way in ("d", "joint")] + ["c"]
    return {
        way: {"cpu_s": round(statistics.median([total(each, way) for each in whole]), 1)}
        for way in ways
        if whole
    }


def main() -> None:
    chosen = options(__doc__ or "", steps=384, store="online-distillation")
    bench = Bench(chosen)
    seeds: dict[int, Any] = {}
    for seed in chosen.seeds:
        for found in bench.seed(seed):
            seeds[seed] = found
            if chosen.go_on:
                seeds = kept_seeds("online_distillation", bench.steps) | seeds
            keep("online_distillation", summary(bench, seeds), is_trial=chosen.tiny)


def summary(bench: Bench, by_seed: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """What the seeds say together, and each of them."""
    seeds = list(by_seed.values())
    shapes = {
        name: f"{model.num_layers} x {model.hidden}, {model.num_params() / 1e6:.2f} M parameters"
        for name, model in bench.students.items()
    }
    return {
        "steps": bench.steps, "students": shapes,
        "teacher": statistics.mean(each["t"]["loss"]["teacher"] for each in seeds),
        "losses": table(seeds, list(bench.students)), "costs": costs(seeds),
        "gate_steps": [each["a logits"]["gate_step"] for each in seeds],
        "teacher_forwards": {way: seeds[0][way]["teacher_forwards"] for way in ("a logits", "b logits")},
        "by_seed": by_seed,
    }  # fmt: skip


if __name__ == "__main__":
    main()
