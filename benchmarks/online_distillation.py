"""Students that learn while their teacher trains, beside every other way: held-out loss, CPU seconds, teacher
forwards and when the last student is ready.

python benchmarks/online_distillation.py [--seeds 1 2 3] [--steps 512] [--store DIR] [--tiny]   an hour or two

Students of about 1/4, 1/8 and 1/16 of the teacher's FLOPs see the same tokens in every way:
  a  online, from the gate on                     (logits, attention + auxiliary layer, both)
  b  from the finished teacher, one shared pass   (likewise)
  c  from the finished teacher, a pass for each
  d  without a teacher
  e  online, from step 0
  f  alone, for as many CPU seconds as a took for student and distillation together
Every part is one engine.train process whose result is kept in DIR; run again, what is there is not made anew.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

from machine import keep

from engine.spec.model.gpt import GPT

WAYS = {"logits": ("logits",), "attention": ("attention",), "both": ("logits", "attention")}
GATE = 0.3  # nats that a student is behind when its lessons begin
SHARES = {"quarter": 4, "eighth": 8, "sixteenth": 16}
T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}  # Student's t, two-sided 95 %, by number of seeds


def teacher_model(vocab: int, *, tiny: bool) -> GPT:
    return GPT(num_layers=4, hidden=64 if tiny else 256, num_heads=4, num_kv_heads=2, vocab=vocab)


def student_model(teacher: GPT, share: int, sequence: int) -> GPT:
    """The model nearest to 1 / share of the teacher's FLOPs, of one or two layers."""
    aim = teacher.flops_per_token(sequence) / share
    shapes = [
        GPT(num_layers=layers, hidden=hidden, num_heads=2, vocab=teacher.tokens)
        for layers in (1, 2)
        for hidden in range(16, teacher.hidden, 8)
    ]
    return min(shapes, key=lambda shape: abs(shape.flops_per_token(sequence) - aim))


class Bench:
    """Parts that are done or not; each is a training of some roles."""

    def __init__(self, store: Path, steps: int, *, tiny: bool) -> None:
        self.store, self.steps, self.tiny = store, steps, tiny
        store.mkdir(parents=True, exist_ok=True)
        self.sequence, self.batch = (64, 4) if tiny else (256, 8)
        self.inputs = self._corpus()
        vocab = json.loads((Path(self.inputs["tokens"]) / "record.json").read_text())["summary"]["vocab"]
        self.teacher = teacher_model(vocab, tiny=tiny)
        self.students = {
            name: student_model(self.teacher, share, self.sequence) for name, share in SHARES.items()
        }

    def _corpus(self) -> dict[str, str]:
        """Tokens and tokenizer of the default corpus, made once."""
        words = ["corpus", "experiment=tiny"] if self.tiny else ["corpus"]
        env = os.environ | {"ATELIER_ROOT": str(self.store / "atelier")}
        subprocess.run(
            [sys.executable, "-m", "flows", *words, "tracker=none"], env=env, cwd=PROJECT, check=True
        )
        found = {}
        for kind in ("tokens", "tokenizer"):
            [found[kind]] = map(str, (self.store / "atelier" / kind).glob("*"))
        return found

    def role(self, model: GPT, seed_name: str, **more: Any) -> dict[str, Any]:
        optim = {"kind": "muon", "lr": 1e-2, "schedule": {"kind": "wsd", "warmup": 20, "decay": 0.25}}
        own = {"lm": {"kind": "lm", "weight": 0.5}}
        return {
            "model": model.model_dump(mode="json"), "objective": own, "optim": optim, "seed_name": seed_name,
        } | more  # fmt: skip

    def student(self, name: str, way: str, **more: Any) -> dict[str, Any]:
        """A student that learns from `teacher` in this way."""
        lessons = {kind: {"kind": kind, "weight": 0.5} for kind in WAYS[way]}
        objective = {"lm": {"kind": "lm", "weight": 0.5}} | lessons
        return self.role(self.students[name], name, objective=objective, teacher="teacher", **more)

    def part(
        self, name: str, seed: int, roles: dict[str, dict[str, Any]], *, frozen: str = "", steps: int = 0
    ) -> dict[str, Any]:
        """What a training of these roles cost and gave; `frozen` is the folder of a finished teacher."""
        place = self.store / f"seed-{seed}" / name
        result = place / "result.json"
        if result.exists():
            return json.loads(result.read_text())
        place.mkdir(parents=True, exist_ok=True)
        run = self._run_file(place, seed, roles, frozen, steps or self.steps)
        print(f"seed {seed}: {name}", flush=True)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "engine.train", str(run)],
            cwd=PROJECT, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{name}: engine.train ended with {process.returncode}")
        kept = [role for role in roles if not (role == "teacher" and frozen)]
        bodies = {role: json.loads((place / role / "body.json").read_text())["summary"] for role in kept}
        found = {
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - began,
            "loss": {role: body["eval_loss"] for role, body in bodies.items()},
            "gate_step": {role: body.get("gate_step") for role, body in bodies.items()},
            "teacher_forwards": max((b.get("teacher_forwards", 0) for b in bodies.values()), default=0),
        }
        result.write_text(json.dumps(found, indent=1))
        return found

    def _run_file(
        self, place: Path, seed: int, roles: dict[str, dict[str, Any]], frozen: str, steps: int
    ) -> Path:
        inputs, outputs, members = dict(self.inputs), {}, {}
        for name, role in roles.items():
            if name == "teacher" and frozen:
                inputs["teacher"] = frozen
                members[name] = {"role": role, "mode": "frozen", "init": "teacher"}
                continue
            fingerprint = hashlib.sha256(f"{place}/{name}".encode()).hexdigest()
            url = str(place / "trajectory" / name)
            segment = {"fingerprint": fingerprint, "url": url, "start": 0, "end": steps}
            members[name] = {"role": role, "segments": [segment], "output": name}
            outputs[name] = str(place / name)
        train = {
            "steps": steps, "global_batch": self.batch, "sequence": self.sequence, "seed": seed,
            "checkpoint_every": 64, "keep": 0, "eval_every": steps, "eval_sequences": 400,
        }  # fmt: skip
        training = {"members": members, "streams": [{"input": "tokens"}], "train": train}
        layout = {"shard": 1, "threads": os.cpu_count() or 1, "device": "cpu"}
        run = {
            "schema": 1, "task": "train", "version": 1, "config": {"trainings": [training]}, "inputs": inputs,
            "outputs": outputs, "scratch": str(place / "scratch"), "layout": layout, "seed": seed,
        }  # fmt: skip
        path = place / "run.json"
        path.write_text(json.dumps(run))
        return path

    def publish(self, seed: int, part: str) -> str:
        """The finished teacher of a part, as an artifact that can be read."""
        from tests.engine.house import artifact

        folder, made = self.store / f"seed-{seed}" / "teacher", self.store / f"seed-{seed}" / part / "teacher"
        if not (folder / "record.json").exists():
            files = {path.name: path.read_bytes() for path in made.iterdir() if path.name != "body.json"}
            artifact(folder, "model", files)
        return str(folder)

    def seed(self, seed: int) -> dict[str, Any]:
        """All ways with one seed."""
        teacher = self.role(self.teacher, "teacher", objective={"lm": {"kind": "lm"}})
        found: dict[str, Any] = {"t": self.part("teacher-alone", seed, {"teacher": teacher})}
        for way in WAYS:
            students = {name: self.student(name, way, gate=GATE) for name in self.students}
            found[f"a {way}"] = self.part(f"a-{way}", seed, {"teacher": teacher} | students)
        finished = self.publish(seed, "teacher-alone")
        for way in WAYS:
            students = {name: self.student(name, way) for name in self.students}
            found[f"b {way}"] = self.part(f"b-{way}", seed, {"teacher": teacher} | students, frozen=finished)
        for name in self.students:
            one = {"teacher": teacher, name: self.student(name, "logits")}
            found[f"c {name}"] = self.part(f"c-{name}", seed, one, frozen=finished)
        alone = {name: self.role(model, name) for name, model in self.students.items()}
        found["d"] = self.part("d", seed, alone)
        early = {name: self.student(name, "logits") for name in self.students}
        found["e logits"] = self.part("e", seed, {"teacher": teacher} | early)
        found["joint"] = self.part("joint", seed, {"teacher": teacher} | alone)
        for name, model in self.students.items():
            each = self.part(f"alone-{name}", seed, {name: self.role(model, name)})
            spent = (found["a logits"]["cpu_s"] - found["t"]["cpu_s"]) * self._share(name)
            steps = max(self.steps, round(self.steps * spent / each["cpu_s"]))
            found[f"f {name}"] = self.part(f"f-{name}", seed, {name: self.role(model, name)}, steps=steps) | {
                "steps": steps
            }
        return found

    def _share(self, name: str) -> float:
        """A student's part of what all students compute."""
        flops = {key: model.flops_per_token(self.sequence) for key, model in self.students.items()}
        return flops[name] / sum(flops.values())


def interval(values: list[float]) -> float:
    """Half of the 95 % interval of the mean."""
    if len(values) < 2:
        return float("nan")
    return T95.get(len(values), 2.0) * statistics.stdev(values) / len(values) ** 0.5


def table(seeds: list[dict[str, Any]], students: list[str]) -> dict[str, Any]:
    """Held-out loss of every student in every way: mean, interval and the paired difference to d."""
    rows: dict[str, Any] = {}
    for way in seeds[0]:
        for name in students:
            if not all(name in each[way]["loss"] for each in seeds):
                continue
            losses = [each[way]["loss"][name] for each in seeds]
            gains = [each["d"]["loss"][name] - each[way]["loss"][name] for each in seeds]
            rows[f"{way}: {name}"] = {
                "loss": round(statistics.mean(losses), 4),
                "below_d": round(statistics.mean(gains), 4),
                "interval": round(interval(gains), 4),
            }
    return rows


def costs(seeds: list[dict[str, Any]]) -> dict[str, Any]:
    """CPU seconds of each way with its teacher's training, and when its last student is ready."""

    def total(each: dict[str, Any], way: str) -> float:
        before = each["t"]["cpu_s"] if way[0] in "bc" else 0.0
        parts = [key for key in each if key == way or (way == "c" and key.startswith("c "))]
        return before + sum(each[key]["cpu_s"] for key in parts)

    ways = [way for way in seeds[0] if way[0] in "abde" or way == "joint"] + ["c"]
    found: dict[str, Any] = {
        way: {"cpu_s": round(statistics.median([total(each, way) for each in seeds]), 1)} for way in ways
    }
    ratios = [each["a logits"]["cpu_s"] / each["joint"]["cpu_s"] for each in seeds]
    found["online / all without distillation"] = round(statistics.median(ratios), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--store", type=Path, default=Path("online-distillation"))
    parser.add_argument("--tiny", action="store_true", help="some minutes: tries the script, shows nothing")
    chosen = parser.parse_args()
    bench = Bench(chosen.store.resolve(), 24 if chosen.tiny else chosen.steps, tiny=chosen.tiny)
    seeds = [bench.seed(seed) for seed in chosen.seeds]
    students = list(bench.students)
    shapes = {
        name: f"{model.num_layers} x {model.hidden}, {model.num_params() / 1e6:.2f} M parameters"
        for name, model in bench.students.items()
    }
    numbers = {
        "seeds": chosen.seeds, "steps": bench.steps, "students": shapes,
        "teacher": statistics.mean(each["t"]["loss"]["teacher"] for each in seeds),
        "losses": table(seeds, students), "costs": costs(seeds),
        "gate_steps": [each["a logits"]["gate_step"] for each in seeds],
        "teacher_forwards": {way: seeds[0][way]["teacher_forwards"] for way in ("a logits", "b logits")},
    }  # fmt: skip
    if chosen.tiny:
        print(json.dumps(numbers, indent=1))
    else:
        keep("online_distillation", numbers)


if __name__ == "__main__":
    main()
