"""What training over sites costs in loss beside synchronous data parallel training of equally many tokens,
and for which bytes.

python benchmarks/outer_loss.py [--seeds 1 2 3 4 5] [--steps 400] [--store DIR] [--tiny]     40 minutes

The default text, a model of 0.6 M parameters, batches of 8 rows of 128 tokens. `synchronous` is one process,
whose weights those of any data parallel layout equal to rounding (tests/parity); in all other ways each site
is a process, with a mailbox that all reach, and takes 50 steps, or as many as it says, with its share of the
same rows between two exchanges. The outer step is DiLoCo's as published (Nesterov, lr 0.7, momentum 0.9;
arXiv:2311.08105) or plain averaging: nothing is tuned on the held-out text. `more`: held-out nats a token
minus those of `synchronous` from the same seed, with the half of its 95 % interval; `bytes`: what a site
sends, as a share of an fp32 gradient a step.
"""

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from machine import keep
from parts import PROJECT, Parts, interval, kept_seeds, options

from atelier.engine.config.link import Link
from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.link.encoded import message_bytes

EVERY = 50
AIM = {"nats": 0.02, "bytes": 0.01}
NESTEROV: dict[str, Any] = {"outer": {"kind": "nesterov", "lr": 0.7, "momentum": 0.9}}
TWO, FOUR = ({"a": 4, "b": 4}, {"a": 2, "b": 2, "c": 2, "d": 2})
WAYS: dict[str, dict[str, Any]] = {
    "nesterov, bf16": {"rows": TWO, **NESTEROV, "codec": {"kind": "bf16"}},
    "nesterov, int8": {"rows": TWO, **NESTEROV, "codec": {"kind": "int8"}},
    "nesterov, int4": {"rows": TWO, **NESTEROV, "codec": {"kind": "int4"}},
    "average, bf16": {"rows": TWO, "codec": {"kind": "bf16"}},
    "nesterov, bf16, sites of 6 and 2 rows": {
        "rows": {"a": 6, "b": 2}, **NESTEROV, "codec": {"kind": "bf16"},
    },
    "nesterov, bf16, 4 sites": {"rows": FOUR, **NESTEROV, "codec": {"kind": "bf16"}},
    # as few bytes by fewer bits of more exchanges
    "average, int4, every 16": {"rows": TWO, "codec": {"kind": "int4"}, "every": 16},
    "average, int2, every 10": {"rows": TWO, "codec": {"kind": "int2"}, "every": 10},
    "average, topk 1 %, every 4": {"rows": TWO, "codec": {"kind": "topk"}, "every": 4},
}  # fmt: skip


class OverSites(Parts):
    def __init__(self, chosen: Any) -> None:
        super().__init__(chosen, sequence=128, corpus_words=["tokenizer=bpe4k", "tokenizer.vocab=1024"])
        self.batch, self.every = 8, 6 if self.tiny else EVERY
        self.model = GPT(num_layers=4, hidden=96, num_heads=4, num_kv_heads=2, vocab=self.vocab)

    def synchronous(self, seed: int) -> float:
        how: dict[str, Any] = {"micro_batch": 2, "checkpoint_every": self.steps}
        return self.part("synchronous", seed, {"m": self.role(self.model, "m")}, **how)["loss"]["m"]

    def over_sites(self, name: str, seed: int, link: dict[str, Any]) -> float:
        """The held-out loss of the model that all sites have."""
        place = self.store / f"seed-{seed}" / name.replace(", ", "-").replace(" ", "-")
        result = place / "result.json"
        size = {"steps": self.steps, "model": self.model.num_params()}
        asked = {"link": link, "every": self.every_of(link), **size}
        if result.exists() and (found := json.loads(result.read_text()))["asked"] == asked:
            return found["loss"]
        print(f"seed {seed}: {name}", flush=True)
        shutil.rmtree(place, ignore_errors=True)  # of a run that was cut off
        began = []
        for site in link["rows"]:
            folder = place / site
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "run.json").write_text(json.dumps(self._of_site(folder, seed, site, link)))
            command = [sys.executable, "-W", "ignore", "-m", "atelier.engine.train", str(folder / "run.json")]
            began.append(subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL))
        if any([process.wait() for process in began]):
            raise SystemExit(f"{name}: a site's training has failed")
        models = {
            hashlib.sha256((place / s / "m/model.safetensors").read_bytes()).hexdigest() for s in link["rows"]
        }
        assert len(models) == 1, f"{name}: the sites' weights differ"
        site = next(iter(link["rows"]))
        loss = json.loads((place / site / "m/body.json").read_text())["summary"]["eval_loss"]
        result.write_text(json.dumps({"asked": asked, "loss": loss}))
        return loss

    def _of_site(self, folder: Path, seed: int, site: str, link: dict[str, Any]) -> dict[str, Any]:
        every = self.every_of(link)
        more = {"mailbox": str(folder.parent / "mail"), "site": site, "every": every}
        kept = every * max(1, self.every // every)
        how: dict[str, Any] = {"micro_batch": 2, "checkpoint_every": kept, "link": link | more}
        run = self._run_file(folder, seed, {"m": self.role(self.model, "m")}, "", self.steps, how)
        [segment] = run["config"]["trainings"][0]["members"]["m"]["segments"]
        segment["fingerprint"] = hashlib.sha256(str(folder.parent).encode()).hexdigest()  # of all sites
        return run

    def message(self, link: dict[str, Any]) -> float:
        """Bytes that a site sends a step, as a share of an fp32 gradient."""
        weights = [TensorEntry(name, "F32", tuple(shape)) for name, shape in self.model.shapes().items()]
        every = self.every_of(link)
        given: dict[str, Any] = link | {"every": every}
        each = message_bytes(Link(**given).codec, weights)
        return each / every / (4 * self.model.num_params())

    def every_of(self, link: dict[str, Any]) -> int:
        return min(self.every, link.get("every", self.every))


def main() -> None:
    chosen = options(__doc__ or "", steps=400, store="outer-loss-store")
    chosen.threads = 1
    found = kept_seeds("outer_loss", chosen.steps) if chosen.go_on else {}
    sites = OverSites(chosen)
    for seed in chosen.seeds:
        losses = {"synchronous": sites.synchronous(seed)}
        losses |= {name: sites.over_sites(name, seed, link) for name, link in WAYS.items()}
        found[seed] = {name: round(loss, 4) for name, loss in losses.items()}
        print(seed, found[seed], flush=True)
    ways = {}
    for name, link in WAYS.items():
        more = [each[name] - each["synchronous"] for each in found.values()]
        ways[name] = {
            "more": round(statistics.mean(more), 4),
            "interval": interval(more),
            "bytes": round(sites.message(link), 5),
        }
        print(f"{name:40} {ways[name]}")
    if not sites.tiny:
        numbers = {"steps": sites.steps, "every": EVERY, "params": sites.model.num_params(), "aim": AIM}
        keep("outer_loss", numbers | {"ways": ways, "by_seed": found})


if __name__ == "__main__":
    main()
