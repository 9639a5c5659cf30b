"""The wind tunnel: decay branches of one stable run beside full cosine runs of the same lengths, and the best
learning rate of a narrow model beside that of a wide one, with muP and without.

python benchmarks/wind_tunnel.py [--steps 120] [--seeds 1 2 3] [--store DIR] [--tiny]

20 minutes of CPU time; --steps are those of the learning rates' trainings.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import keep
from parts import PROJECT, Parts, options, steps_computed

from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.config.trajectory import Feed, segments_of

LENGTHS = (200, 400, 600, 800, 1000)  # steps of the branches, and of the cosine runs
DECAY = 0.2
PEAK, BATCH = 4e-3, 8  # of the branches
PEAKS = (2e-3, PEAK, 8e-3)  # of the cosine runs: of each length the best counts
FALLS: dict[str, dict[str, Any]] = {
    "cosine": {"kind": "cosine"},
    "linear": {"kind": "wsd", "decay": DECAY},
    "exponential": {"kind": "wsd", "decay": DECAY, "shape": "exponential"},
}
NARROW, WIDE = 64, 256
RATES = [1e-3 * 2**n for n in range(7)]  # of the narrow model, and of the wide one with muP
MINICPM = {
    "init_std": 0.1,
    "multipliers": {"embedding": 12.0, "residual": 1.4 / 2**0.5},
}  # 2404.06395, table 8
PLAIN = [2.5e-4 * 2**n for n in range(7)]  # of the wide one without
WARMUP, GOAL_LOSS, GOAL_STEPS, GOAL_RATIO = 20, 0.01, 0.55, 2.0


class Tunnel(Parts):
    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, corpus_words=() if chosen.tiny else ("tokenizer=bpe512",))
        self.sequence, self.batch = 64, 4
        self.lengths = [length // 10 for length in LENGTHS] if self.tiny else list(LENGTHS)

    def model(self, width: int, **more: Any) -> GPT:
        return GPT(num_layers=2, hidden=width, num_heads=width // 16, vocab=self.vocab, **more)

    def rolled(self, model: GPT, rate: float, schedule: dict[str, Any]) -> dict[str, Any]:
        optim = {"kind": "adamw", "lr": rate, "schedule": {"warmup": WARMUP} | schedule}
        return self.role(model, "model", optim=optim)

    def branch(self, fall: str, steps: int, peak: float = PEAK) -> dict[str, Any]:
        """A training in the segments that the engine cuts it into: what falls alike shares their folders."""
        place = self.store / "branches" / (f"{fall}-{steps}" + (f"-{peak}" if peak != PEAK else ""))
        role = self.rolled(self.model(NARROW), peak, FALLS[fall])
        train = {
            "steps": steps, "global_batch": BATCH, "sequence": self.sequence, "seed": 1,
            "precision": "fp32", "checkpoint_every": 1000, "keep": 1,
            "eval_every": steps, "eval_sequences": 400,
        }  # fmt: skip
        feed = Feed({kind: Path(url).name for kind, url in self.inputs.items()}, {})
        cut = segments_of(
            {"model": Role.model_validate(role)}, Train.model_validate(train), feed, {}
        )["model"]  # fmt: skip
        segments = [
            {"fingerprint": one.fingerprint, "start": one.start, "end": one.end}
            | {"url": str(self.store / "branches" / "trajectory" / one.fingerprint[:16])}
            for one in cut
        ]
        member = {"role": role, "segments": segments, "output": "model"}
        training = {"members": {"model": member}, "streams": [{"input": "tokens"}], "train": train}
        asked = {
            "schema": 1, "task": "train", "version": 1, "config": {"trainings": [training]},
            "inputs": self.inputs, "outputs": {"model": str(place / "model")}, "seed": 1,
            "scratch": str(place / "scratch"), "layout": {"shard": 1, "threads": 1, "device": "cpu"},
        }  # fmt: skip
        body, run = place / "model" / "body.json", place / "run.json"
        if not (body.exists() and run.read_text() == json.dumps(asked)):
            print(f"{fall}: {steps} steps at {peak}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            run.write_text(json.dumps(asked))
            subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "atelier.engine.train", str(run)],
                cwd=PROJECT, stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
        summary = json.loads(body.read_text())["summary"]
        return {"loss": summary["eval_loss"], "folders": [Path(one["url"]) for one in segments]}

    def swept(self, seed: int, name: str, model: GPT, rates: list[float]) -> dict[str, Any]:
        """One training of equal models that differ in their rates; held-out loss by rate."""
        falls = {"kind": "wsd", "decay": DECAY}
        roles = {f"rate{n}": self.rolled(model, rate, falls) for n, rate in enumerate(rates)}
        made = self.part(name, seed, roles, precision="fp32", eval_sequences=200)
        return {"loss": list(made["loss"].values()), "cpu_s": made["cpu_s"]}


def branches(bench: Tunnel) -> dict[str, Any]:
    """Losses of all lengths, and the steps that each way of falling took."""
    found: dict[str, Any] = {"lengths": bench.lengths, "peak": PEAK, "decay": DECAY}
    found["tokens a step"] = BATCH * bench.sequence
    trained = {}
    for fall in FALLS:
        made = [bench.branch(fall, length) for length in bench.lengths]
        trained[fall] = steps_computed({folder for one in made for folder in one["folders"]})
        found[fall] = {"loss": [round(one["loss"], 4) for one in made], "steps_trained": trained[fall]}
    at = [[bench.branch("cosine", length, peak)["loss"] for peak in PEAKS] for length in bench.lengths]
    found["cosine"] |= {
        "loss": [round(min(each), 4) for each in at],
        "peaks": [PEAKS[each.index(min(each))] for each in at],
    }
    for fall in list(FALLS)[1:]:
        pairs = zip(found[fall]["loss"], found["cosine"]["loss"], strict=True)
        found[fall]["over cosine, %"] = [round(100 * (mine / its - 1), 2) for mine, its in pairs]
        found[fall]["steps ratio"] = round(trained[fall] / trained["cosine"], 3)
        found[fall]["reached"] = (
            max(found[fall]["over cosine, %"]) <= 100 * GOAL_LOSS and found[fall]["steps ratio"] <= GOAL_STEPS
        )
    return found


def best(rates: list[float], losses: list[list[float]]) -> dict[str, Any]:
    """The rate of the lowest mean loss over seeds, and the lowest point of the parabola through it and its
    neighbours over the log of the rate.
    """
    means = [statistics.mean(each) for each in zip(*losses, strict=True)]
    place = means.index(min(means))
    found = {"rates": rates, "mean loss": [round(one, 4) for one in means], "best": rates[place]}
    if 0 < place < len(rates) - 1:
        below, here, above = means[place - 1 : place + 2]
        shift = (below - above) / (2 * (below + above - 2 * here))
        return found | {"between": float(f"{rates[place] * 2**shift:.4g}")}
    return found | {"between": rates[place], "at the edge": True}


def widths(bench: Tunnel, seeds: list[int]) -> dict[str, Any]:
    narrow, wide = bench.model(NARROW, base_width=NARROW), bench.model(WIDE, base_width=NARROW)
    found: dict[str, Any] = {"tokens a step": bench.batch * bench.sequence}
    for name, model, rates in (
        (f"{NARROW}", narrow, RATES),
        (f"{WIDE}, muP", wide, RATES),
        (f"{WIDE}, without", bench.model(WIDE), PLAIN),
        (f"{NARROW}, MiniCPM", bench.model(NARROW, base_width=NARROW, **MINICPM), RATES),
        (f"{WIDE}, muP, MiniCPM", bench.model(WIDE, base_width=NARROW, **MINICPM), RATES),
    ):
        made = [bench.swept(seed, name.replace(", ", "-"), model, rates) for seed in seeds]
        found[name] = best(rates, [one["loss"] for one in made])
        found[name]["cpu_s"] = round(sum(one["cpu_s"] for one in made), 1)
    for name in (f"{WIDE}, muP", f"{WIDE}, without"):
        for which in ("best", "between"):
            found[f"{which} of {name} / of {NARROW}"] = round(
                found[name][which] / found[f"{NARROW}"][which], 3
            )
    theirs = [found[f"{name}, MiniCPM"]["best"] for name in (f"{WIDE}, muP", f"{NARROW}")]
    found[f"best of {WIDE} / of {NARROW}, MiniCPM"] = theirs[0] / theirs[1]
    ratio = found[f"best of {WIDE}, muP / of {NARROW}"]
    found["reached"] = abs(math.log2(ratio)) <= math.log2(GOAL_RATIO) + 1e-9
    return found


def main() -> None:
    chosen = options(__doc__ or "", steps=120, store="wind-tunnel")
    chosen.threads = 1
    bench = Tunnel(chosen)
    numbers = {
        "steps": bench.steps,
        "wsd": branches(bench),
        "muP": widths(bench, chosen.seeds),
        "goals": {"loss, %": 100 * GOAL_LOSS, "steps ratio": GOAL_STEPS, "rates ratio": GOAL_RATIO},
    }  # fmt: skip
    keep("wind_tunnel", numbers, is_trial=bench.tiny or len(chosen.seeds) < 2, made_by=bench.made_by)


if __name__ == "__main__":
    main()
