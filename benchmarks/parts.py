"""Trainings as parts of a comparison: each an `atelier.engine.train` process whose result is kept and reused
by later runs of the script.
"""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t as student_t

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import RESULTS, about, commit, use_own_code

from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.machine import num_cores
from tests.engine.trainings import artifact

use_own_code()
Way = dict[float, dict[str, Any]]  # share of the steps -> its part


def options(about: str, *, steps: int, store: str, **own: Any) -> argparse.Namespace:
    """What every comparison of several seeds takes, and options of its `own` with their defaults."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--store", type=Path, default=Path(store))
    parser.add_argument("--go-on", action="store_true", help="beside the seeds of the kept result")
    parser.add_argument("--threads", type=int, default=num_cores(), help="of each training")
    parser.add_argument("--tiny", action="store_true", help="some minutes: tries the script, shows nothing")
    for name, default in own.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def kept_seeds(benchmark: str, steps: int) -> dict[int, Any]:
    """The seeds of the kept result, of equally long trainings."""
    kept = RESULTS / f"{benchmark}.json"
    if not kept.exists():
        return {}
    numbers = json.loads(kept.read_text())["numbers"]
    if numbers["steps"] != steps:
        raise SystemExit(f"the kept seeds had {numbers['steps']} steps: --steps {numbers['steps']}")
    return {int(seed): found for seed, found in numbers["by_seed"].items()}


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


def tokens_to(aim: float, way: Way) -> float | None:
    """Tokens after which the loss is at most `aim`; those of the shortest length where even that is."""
    parts = [way[share] for share in sorted(way)]
    losses, tokens = ([part[key]["model"] for part in parts] for key in ("loss", "tokens"))
    if losses[0] <= aim:
        return tokens[0]
    for before, after in itertools.pairwise(range(len(parts))):
        if losses[before] > aim >= losses[after]:
            part = (losses[before] - aim) / (losses[before] - losses[after])
            return tokens[before] * (tokens[after] / tokens[before]) ** part
    return None


def interval(values: list[float]) -> float | None:
    """Half of the 95 % interval of the mean; None for a single value."""
    if len(values) < 2:
        return None
    quantile = float(student_t.ppf(0.975, len(values) - 1))
    return round(quantile * statistics.stdev(values) / len(values) ** 0.5, 4)


class Parts:
    """Parts that are done or not; each is a training of some roles on the default corpus."""

    def __init__(
        self, chosen: argparse.Namespace, *, sequence: int = 256, corpus_words: Sequence[str] = ()
    ) -> None:
        self.store, self.tiny, self.threads = chosen.store.resolve(), chosen.tiny, chosen.threads
        self.steps = 24 if self.tiny else chosen.steps
        self.store.mkdir(parents=True, exist_ok=True)
        self.made_by: set[str] = set()  # commits
        self.sequence, self.batch = (64, 4) if self.tiny else (sequence, 8)
        words = ["corpus", *(["experiment=tiny"] if self.tiny else []), *corpus_words]
        self.inputs = corpus(self.store / "atelier", words)  # of the default text
        self.vocab = int(self.record("tokens")["summary"]["vocab"])
        self.teacher = teacher_model(self.vocab, tiny=self.tiny)

    def record(self, kind: str) -> dict[str, Any]:
        return json.loads((Path(self.inputs[kind]) / "record.json").read_text())

    def role(self, model: GPT, seed_name: str, decay: float = 0.25, **more: Any) -> dict[str, Any]:
        """`decay`: the share of the steps in which the learning rate falls, the last ones."""
        optim = {"kind": "muon", "lr": 1e-2, "schedule": {"kind": "wsd", "warmup": 20, "decay": decay}}
        own = {"lm": {"kind": "lm"}}
        return {
            "model": model.model_dump(mode="json"), "objective": own, "optim": optim, "seed_name": seed_name,
        } | more  # fmt: skip

    def part(
        self, name: str, seed: int, roles: dict[str, dict[str, Any]], *, frozen: str = "", init: str = "",
        trunk: tuple[str, int] | None = None, text: Mapping[str, tuple[str, float]] | None = None,
        steps: int = 0, entry: Sequence[str] = ("-m", "atelier.engine.train"), **train: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """What a training of these roles cost and gave; `frozen` is the folder of a finished teacher, `init`
        that of the model from which the others start, `trunk` the name and the end of steps that trainings
        of other lengths share, `text` tokens and weight of each source where it is not the corpus, `entry`
        what Python is to run, `train` are settings.
        """
        place = self.store / f"seed-{seed}" / name
        result, run = place / "result.json", place / "run.json"
        asked_run = self._run_file(place, seed, roles, frozen, steps or self.steps, train)
        self._extend(asked_run, init, trunk, text)
        asked = json.dumps(asked_run)
        if result.exists():
            if run.read_text() == asked:
                found = json.loads(result.read_text())
                self.made_by.add(found.get("code", ""))
                return found
            print(f"seed {seed}: {name} was made with other settings: anew", flush=True)
            shutil.rmtree(place)
        place.mkdir(parents=True, exist_ok=True)
        run.write_text(asked)
        print(f"seed {seed}: {name}", flush=True)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *entry, str(run)],
            cwd=PROJECT, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{name}: atelier.engine.train ended with {process.returncode}")
        kept = [role for role in roles if not (role == "teacher" and frozen)]
        bodies = {role: json.loads((place / role / "body.json").read_text())["summary"] for role in kept}
        found = {
            "cpu": about()["cpu"],
            "code": commit(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "wall_s": time.monotonic() - began,
            "loss": {role: body["eval_loss"] for role, body in bodies.items()},
            "tokens": {role: body["tokens"] for role, body in bodies.items()},
            "began_with_states": {
                role: body.get("began_with_states", False) for role, body in bodies.items()
            },
            "looks": {role: _looks(place / "trajectory" / role) for role in kept},
            "gate_step": {role: body.get("gate_step") for role, body in bodies.items()},
            "teacher_forwards": max((b.get("teacher_forwards", 0) for b in bodies.values()), default=0),
        }
        result.write_text(json.dumps(found, indent=1))
        self.made_by.add(found["code"])
        return found

    def _run_file(
        self,
        place: Path,
        seed: int,
        roles: dict[str, dict[str, Any]],
        frozen: str,
        steps: int,
        more: dict[str, Any],
    ) -> dict[str, Any]:
        inputs, outputs, members = dict(self.inputs), {}, {}
        for name, role in roles.items():
            if name == "teacher" and frozen:
                inputs["teacher"] = frozen
                members[name] = {"role": role, "mode": "frozen", "init": "teacher"}
                continue
            fingerprint = hashlib.sha256(f"{place}/{name}".encode()).hexdigest()
            url = str(place / "trajectory" / name)
            segment = {"fingerprint": fingerprint, "url": url, "start": role.get("start", 0), "end": steps}
            members[name] = {"role": role, "segments": [segment], "output": name}
            outputs[name] = str(place / name)
        train = {
            "steps": steps, "global_batch": self.batch, "sequence": self.sequence, "seed": seed,
            "checkpoint_every": 64, "keep": 0, "eval_every": steps, "eval_sequences": 400,
        } | more  # fmt: skip
        training = {"members": members, "streams": [{"input": "tokens"}], "train": train}
        layout = {"shard": 1, "threads": self.threads, "device": "cpu"}
        return {
            "schema": 1, "task": "train", "version": 1, "config": {"trainings": [training]}, "inputs": inputs,
            "outputs": outputs, "scratch": str(place / "scratch"), "layout": layout, "seed": seed,
        }  # fmt: skip

    def _extend(
        self,
        run: dict[str, Any],
        init: str,
        trunk: tuple[str, int] | None,
        text: Mapping[str, tuple[str, float]] | None,
    ) -> None:
        training = run["config"]["trainings"][0]
        for name, member in training["members"].items():
            if init and member.get("mode") != "frozen":
                run["inputs"]["init"] = init
                member["init"] = "init"
            if trunk and "segments" in member:
                [last] = member["segments"]
                shared, end = trunk
                url = str(Path(last["url"]).parent.parent.parent / shared / "trajectory" / name)
                own = hashlib.sha256(url.encode()).hexdigest()
                first = last | {"fingerprint": own, "url": url, "end": end}
                member["segments"] = [first, last | {"start": end}]
        if text:
            run["inputs"].pop("tokens")
            run["inputs"] |= {f"tokens.{source}": tokens for source, (tokens, _) in text.items()}
            training["streams"] = [
                {"input": f"tokens.{source}", "weight": weight} for source, (_, weight) in text.items()
            ]

    def publish(self, seed: int, part: str, role: str = "teacher") -> str:
        """The finished model of a part, as an artifact that can be read."""
        made = self.store / f"seed-{seed}" / part / role
        return published(
            made, self.store / f"seed-{seed}" / "teacher" if role == "teacher" else made.with_name("made")
        )


def published(made: Path, folder: Path) -> str:
    """What a command of the engine wrote as output `made`, as an artifact that can be read: its folder."""
    record = folder / "record.json"
    if not record.exists() or record.stat().st_mtime < (made / "body.json").stat().st_mtime:
        summary = json.loads((made / "body.json").read_text())["summary"]
        files = {path.name: path.read_bytes() for path in made.iterdir() if path.name != "body.json"}
        artifact(folder, "model", files, **summary)
    return str(folder)


def run_flow(store: Path, words: Sequence[str]) -> None:
    env = os.environ | {"ATELIER_ROOT": str(store)}
    command = [sys.executable, "-m", "atelier", *words, "tracker=none"]
    subprocess.run(command, env=env, cwd=PROJECT, check=True)


def corpus(store: Path, words: Sequence[str]) -> dict[str, str]:
    """Tokens and tokenizer that a flow makes in a store of their own."""
    run_flow(store, words)
    found = {}
    for kind in ("tokens", "tokenizer"):
        [found[kind]] = map(str, (store / kind).glob("*"))
    return found


def steps_computed(trajectories: Iterable[Path]) -> int:
    """Steps computed in these trajectories, repeated ones counted as often as they were computed."""
    steps = 0
    for folder in trajectories:
        attempts: dict[str, list[tuple[str, str]]] = {}
        for path in sorted((folder / FOLDER).iterdir()):
            attempts.setdefault(path.name.split("-")[1], []).append((path.name, path.read_text()))
        steps += sum(len(merge(files)) for files in attempts.values())
    return steps


def _looks(trajectory: Path) -> list[float | None]:
    """All held-out losses of a training, in order; None is one that is no number."""
    folder = trajectory / FOLDER
    lines = merge((path.name, path.read_text()) for path in sorted(folder.iterdir()))
    values = [line.get("values", {}) for line in lines]
    return [each["eval/loss"] for each in values if "eval/loss" in each]
