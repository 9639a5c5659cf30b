"""Students that learn while their teacher trains, beside all other ways: held-out loss, CPU seconds, teacher
forwards and when the last student is ready.

python benchmarks/online_distillation.py [--seeds 1 2 3] [--steps 384] [--store DIR] [--tiny]  40 min a seed
python benchmarks/online_distillation.py --seeds 3 --go-on      adds a seed to those of the kept result

Students of about 1/4, 1/8 and 1/16 of the teacher's FLOPs. In a to d they start at half of the steps and see
the same tokens:
  a  online, from the teacher that still trains   (logits; logits and attention)
  b  from the finished teacher, one shared pass; "whole": from step 0
  c  from the finished teacher, a pass for each
  d  without a teacher; "longer": with the teacher's schedule; "whole": from step 0, all tokens
  e  online, from step 0; "lead": with a weight in proportion to the teacher's lead
  f  alone from step 0, for as many CPU seconds as a took for student and distillation together
Every part is one engine.train process whose result is kept in DIR and reused. For every seed
benchmarks/results has first the ways of the goals (a and b with logits, d, and training all without
distillation), then the others.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any

from machine import keep
from parts import Parts, interval, kept_seeds, options, student_model

WAYS = {"logits": ("logits",), "both": ("logits", "attention")}
LATE = 0.5  # of the steps, when students come
TAUGHT = 0.9  # of a student's objective that is its teacher's
ATTENTION = 0.45  # beside the logits' weight, which stays as it is
LEAD = 0.3  # nats from which on a weight that follows the lead is whole
LONG = 0.7  # of the teacher's steps, in which its rate falls: it is ahead of its students early
SHARES = {"quarter": 4, "eighth": 8, "sixteenth": 16}


class Bench(Parts):
    """All ways to get three students."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, sequence=128)
        self.students = {
            name: student_model(self.teacher, share, self.sequence) for name, share in SHARES.items()
        }
        self.late = round(LATE * self.steps)

    def student(self, name: str, way: str, *, follows_lead: bool = False, **more: Any) -> dict[str, Any]:
        """A student that learns from `teacher` in this way."""
        kinds = WAYS[way]
        objective: dict[str, dict[str, Any]] = {"lm": {"kind": "lm", "weight": 1 - TAUGHT}}
        weights = {"logits": TAUGHT, "attention": ATTENTION}
        objective |= {kind: {"kind": kind, "weight": weights[kind]} for kind in kinds}
        if follows_lead:
            objective["logits"]["schedule"] = {"kind": "lead", "nats": LEAD}
        return self.role(self.students[name], name, objective=objective, teacher="teacher", **more)

    def seed(self, seed: int) -> Iterator[dict[str, Any]]:
        """The ways with one seed: first those that the goals are about, then all of them."""
        teacher = self.role(self.teacher, "teacher", LONG, objective={"lm": {"kind": "lm"}})
        alone = {name: self.role(model, name, start=self.late) for name, model in self.students.items()}
        longer = {
            name: self.role(model, name, LONG, start=self.late) for name, model in self.students.items()
        }
        whole = {name: self.role(model, name) for name, model in self.students.items()}
        found: dict[str, Any] = {"t": self.part("teacher-alone", seed, {"teacher": teacher})}
        finished = self.publish(seed, "teacher-alone")

        def learn(way: str, kind: str, frozen: str = "") -> dict[str, Any]:
            students = {name: self.student(name, kind, start=self.late) for name in self.students}
            return self.part(f"{way}-{kind}", seed, {"teacher": teacher} | students, frozen=frozen)

        found["a logits"] = learn("a", "logits")
        found["b logits"] = learn("b", "logits", finished)
        found["d"] = self.part("d", seed, alone)
        found["d longer"] = self.part("d-longer", seed, longer)
        found["joint"] = self.part("joint", seed, {"teacher": teacher} | alone)
        yield found
        found["d whole"] = self.part("d-whole", seed, whole)
        for way, follows_lead in (("e", False), ("e lead", True)):
            early = {name: self.student(name, "logits", follows_lead=follows_lead) for name in self.students}
            found[way] = self.part(way.replace(" ", "-"), seed, {"teacher": teacher} | early)
        early = {name: self.student(name, "logits") for name in self.students}
        found["b whole"] = self.part("b-whole", seed, {"teacher": teacher} | early, frozen=finished)
        found["a both"] = learn("a", "both")
        for name in self.students:
            one = {"teacher": teacher, name: self.student(name, "logits", start=self.late)}
            found[f"c {name}"] = self.part(f"c-{name}", seed, one, frozen=finished)
        each = {name: self.part(f"whole-{name}", seed, {name: role}) for name, role in whole.items()}
        spent = found["a logits"]["cpu_s"] - found["t"]["cpu_s"]
        # of which a start and an evaluation are no training: what a part of one step takes
        begun = {
            name: self.part(f"begin-{name}", seed, {name: role}, steps=1) for name, role in whole.items()
        }
        total = sum(each[name]["cpu_s"] - begun[name]["cpu_s"] for name in whole)
        # of each: a student's part of what is spent is as its own training's of theirs, as measured
        steps = max(1, round(self.steps * spent / total))
        for name, role in whole.items():
            found[f"f {name}"] = self.part(f"f-{name}", seed, {name: role}, steps=steps) | {"steps": steps}
        yield found


def table(seeds: list[dict[str, Any]], students: list[str]) -> dict[str, Any]:
    """Held-out loss of every student in every way: mean, interval and the paired difference to the better
    of the two controls of equal tokens.
    """
    rows: dict[str, Any] = {}
    for way in dict.fromkeys(way for each in seeds for way in each):
        for name in students:
            shown = [each for each in seeds if way in each and name in each[way]["loss"]]
            if not shown:
                continue
            losses = [each[way]["loss"][name] for each in shown]
            gains = [
                min(each[control]["loss"][name] for control in ("d", "d longer")) - each[way]["loss"][name]
                for each in shown
            ]
            rows[f"{way}: {name}"] = {
                "seeds": len(shown),
                "loss": round(statistics.mean(losses), 4),
                "below_control": round(statistics.mean(gains), 4),
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
    online = [each["a logits"]["cpu_s"] / total(each, "b logits") for each in seeds]
    ratio = {"a / b with its teacher": round(statistics.median(online), 4)}
    early = [each["e"]["cpu_s"] / total(each, "b whole") for each in seeds if "b whole" in each]
    if early:
        ratio["e / b whole with its teacher"] = round(statistics.median(early), 4)
    return ratio | {
        way: {"cpu_s": round(statistics.median([total(each, way) for each in whole]), 1)}
        for way in ways
        if whole
    }


def main() -> None:
    chosen = options(__doc__ or "", steps=384, store="online-distillation")
    bench = Bench(chosen)
    seeds = kept_seeds("online_distillation", bench.steps) if chosen.go_on else {}
    ways = {seed: bench.seed(seed) for seed in chosen.seeds}
    for _ in ("what the goals are about", "all ways"):  # of every seed, then the next
        for seed, found in ways.items():
            seeds[seed] = next(found)
            keep("online_distillation", summary(bench, seeds), is_trial=chosen.tiny, made_by=bench.made_by)


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
        "teacher_forwards": {way: seeds[0][way]["teacher_forwards"] for way in ("a logits", "b logits")},
        "by_seed": by_seed,
    }  # fmt: skip


if __name__ == "__main__":
    main()
