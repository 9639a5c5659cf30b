"""Loss and bytes of training over sites, beside synchronous data parallel training with equally many tokens.

python benchmarks/outer_loss.py --seeds 1 2 3 4 5 [--steps 2000] [--store DIR] [--tiny]       100 minutes
python benchmarks/outer_loss.py --source code.jsonl --lr 4e-3 --seeds 1 2    on another text, only printed

The default text, a model of 0.5 M parameters, batches of 8 rows of 128 tokens. `synchronous` is one process,
whose weights equal those of any data parallel layout up to rounding (tests/parity). In all other ways each
site is a process, with a mailbox that all reach, and takes `every` steps with its share of the same rows
between two exchanges. LONG: all steps, a way that sends less than 1/100 of an fp32 gradient a step, and the
same without its codec. SHORT: a tenth of the steps and three seeds: codecs with and without feedback, more
sites, unequal ones, and DiLoCo's outer step as published (Nesterov, lr 0.7, momentum 0.9; arXiv:2311.08105).
Nothing is tuned on the held-out text: codecs are the defaults, `every` is the first divisor of the steps at
which a site sends so few bytes (bf16's 50 is 0.4 % above), LONG's learning rate was chosen on another text.
`more`: held-out nats a token minus those of `synchronous` from the same seed, with the half of its 95 %
interval; `bytes`: the bytes that a site sends, as a share of an fp32 gradient a step.
"""

import hashlib
import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import commit, keep
from parts import PROJECT, Parts, interval, options

from atelier.engine.config.model.gpt import GPT
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.encoded import message_bytes
from atelier.engine.io.tensorfile import TensorEntry

AIM = {"nats": 0.02, "bytes": 0.01}
FEWER = 10  # SHORT has so many times fewer steps
SHORT_LR, LONG_LR, MANY = 1e-2, 4e-3, 1000  # Muon's, of trainings of fewer than MANY steps and of others
SHORT_SEEDS = 3
NESTEROV: dict[str, Any] = {"outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}}
TWO, FOUR = ({"a": 4, "b": 4}, {"a": 2, "b": 2, "c": 2, "d": 2})


def way(kind: str, every: int, **more: Any) -> dict[str, Any]:
    return {"rows": TWO, "codec": {"kind": kind}, "every": every} | more


LONG: dict[str, dict[str, Any]] = {
    "average, int2, every 8": way("int2", 8),
    "average, none, every 8": way("none", 8),
}
SHORT: dict[str, dict[str, Any]] = {
    **LONG,
    "average, int4, every 20": way("int4", 20),
    "average, int4, every 20, no feedback": way("int4", 20, feedback=False),
    "average, int2, every 8, no feedback": way("int2", 8, feedback=False),
    "average, topk, every 4": way("topk", 4),
    "average, topk, every 4, no feedback": way("topk", 4, feedback=False),
    "average, powersgd, every 8": way("powersgd", 8),
    "average, powersgd, every 8, no feedback": way("powersgd", 8, feedback=False),
    "average, bf16, every 50": way("bf16", 50),
    "average, int8, every 40": way("int8", 40),
    "average, int2, every 8, 6 and 2 rows": way("int2", 8, rows={"a": 6, "b": 2}),
    "average, int2, every 8, 4 sites": way("int2", 8, rows=FOUR),
    "nesterov, bf16, every 50": way("bf16", 50, **NESTEROV),
    "nesterov, int2, every 8": way("int2", 8, **NESTEROV),
}


class OverSites(Parts):
    def __init__(self, chosen: Any) -> None:
        words = ["tokenizer=bpe4k", "tokenizer.vocab=1024"]
        words += [f"data.source={Path(chosen.source).resolve()}"] if chosen.source else []
        super().__init__(chosen, sequence=128, corpus_words=words)
        self.batch, self.lr = 8, chosen.lr
        self.model = GPT(num_layers=4, hidden=96, num_heads=4, num_kv_heads=2, vocab=self.vocab)

    def _role(self, steps: int) -> dict[str, Any]:
        role = self.role(self.model, "m")
        role["optim"]["lr"] = self.lr or (SHORT_LR if steps < MANY else LONG_LR)
        return role

    def synchronous(self, seed: int, steps: int) -> float:
        how: dict[str, Any] = {"micro_batch": 4, "checkpoint_every": steps, "eval_every": steps}
        role = {"m": self._role(steps)}
        return self.part(f"synchronous-{steps}", seed, role, steps=steps, **how)["loss"]["m"]

    def over_sites(self, name: str, seed: int, link: dict[str, Any], steps: int) -> float:
        """The held-out loss of the model that all sites have."""
        place = self.store / f"seed-{seed}" / f"{name}, {steps}".replace(", ", "-").replace(" ", "-")
        result = place / "result.json"
        runs = {
            place / site / "run.json": self._of_site(place / site, seed, site, link, steps)
            for site in link["rows"]
        }
        asked = {run: json.dumps(of_site) for run, of_site in runs.items()}
        if result.exists():
            if all(run.exists() and run.read_text() == text for run, text in asked.items()):
                found = json.loads(result.read_text())
                self.made_by.add(found["code"])
                return found["loss"]
            print(f"seed {seed}: {name} was made with other settings: anew", flush=True)
        print(f"seed {seed}: {name}, {steps} steps", flush=True)
        shutil.rmtree(place, ignore_errors=True)  # also of a run that was cut off
        began = []
        for run, text in asked.items():
            run.parent.mkdir(parents=True, exist_ok=True)
            run.write_text(text)
            command = [sys.executable, "-W", "ignore", "-m", "atelier.engine.train", str(run)]
            began.append(subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL))
        if any([process.wait() for process in began]):
            raise SystemExit(f"{name}: a site's training has failed")
        models = {
            hashlib.sha256((place / s / "m/model.safetensors").read_bytes()).hexdigest() for s in link["rows"]
        }
        assert len(models) == 1, f"{name}: the sites' weights differ"
        site = next(iter(link["rows"]))
        loss = json.loads((place / site / "m/body.json").read_text())["summary"]["eval_loss"]
        result.write_text(json.dumps({"loss": loss, "code": commit()}))
        return loss

    def _of_site(
        self, folder: Path, seed: int, site: str, link: dict[str, Any], steps: int
    ) -> dict[str, Any]:
        how: dict[str, Any] = {"micro_batch": math.gcd(link["rows"][site], 4), "eval_every": steps}
        how |= {
            "checkpoint_every": min(steps, 200),  # messages are kept until two have them
            "link": link | {"mailbox": str(folder.parent / "mail"), "site": site},
        }
        run = self._run_file(folder, seed, {"m": self._role(steps)}, "", steps, how)
        [segment] = run["config"]["trainings"][0]["members"]["m"]["segments"]
        segment["fingerprint"] = hashlib.sha256(str(folder.parent).encode()).hexdigest()  # of all sites
        return run

    def message(self, link: dict[str, Any]) -> float:
        """Bytes that a site sends a step, as a share of an fp32 gradient."""
        weights = [TensorEntry(name, "F32", tuple(shape)) for name, shape in self.model.shapes().items()]
        each = message_bytes(Link(**link).codec, weights)
        return each / link["every"] / (4 * self.model.num_params())

    def compared(self, ways: dict[str, dict[str, Any]], seeds: list[int], steps: int) -> dict[str, Any]:
        """The losses of all ways, and their means beside those of `synchronous`."""
        found: dict[int, dict[str, float]] = {}
        for seed in seeds:
            losses = {"synchronous": self.synchronous(seed, steps)}
            losses |= {name: self.over_sites(name, seed, link, steps) for name, link in ways.items()}
            found[seed] = {name: round(loss, 4) for name, loss in losses.items()}
            print(seed, found[seed], flush=True)
        told = {}
        for name, link in ways.items():
            more = [each[name] - each["synchronous"] for each in found.values()]
            told[name] = {
                "more": round(statistics.mean(more), 4),
                "interval": interval(more),
                "bytes": round(self.message(link), 5),
            }
            print(f"{name:40} {told[name]}")
        return {"steps": steps, "ways": told, "by_seed": found}


def main() -> None:
    chosen = options(__doc__ or "", steps=2000, store="outer-loss-store", source="", lr=0.0)
    chosen.threads = 1
    sites = OverSites(chosen)
    few, many = (200, 200) if sites.tiny else (sites.steps // FEWER, sites.steps)
    seeds = chosen.seeds[:1] if sites.tiny else chosen.seeds
    is_other = bool(chosen.source or chosen.lr)
    numbers = {
        "params": sites.model.num_params(),
        "aim": AIM,
        "short": {} if is_other else sites.compared(SHORT, seeds[:SHORT_SEEDS], few),
        "long": sites.compared(LONG, seeds, many),
    }
    keep("outer_loss", numbers, is_trial=sites.tiny or is_other, made_by=sites.made_by)


if __name__ == "__main__":
    main()
