"""Held-out loss over seeds of a mixture whose optimiser is Muon for each expert matrix, beside one with AdamW
for the experts and Muon for the rest, and one with AdamW for all. Each has the best of three learning rates,
by the training loss of a seed that is not compared.

python benchmarks/experts_optim.py [--seeds 1 2 3] [--steps 320] [--store DIR] [--tiny]     40 minutes
"""

import argparse
import statistics
from typing import Any

from machine import keep
from parts import Parts, interval, options

from atelier.engine.config.experts import Experts
from atelier.engine.config.metric import FOLDER, merge
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.router.topk import TopK

RATES: dict[str, list[dict[str, Any]]] = {
    "muon": [{"lr": 1e-2, "matrix_lr": rate} for rate in (0.005, 0.01, 0.02)],
    "experts by adamw": [{"lr": rate, "matrix_lr": 0.01} for rate in (2e-3, 5e-3, 1e-2)],
    "adamw": [{"lr": rate} for rate in (1e-3, 2e-3, 4e-3)],
}
BY_ADAMW = """
import sys
from atelier.engine.optim import muon
from atelier.engine.train import main
moved = muon.is_moved
muon.is_moved = lambda name, weight: weight.dim() == 2 and moved(name, weight)
sys.exit(main(sys.argv[1:]))
"""
TUNED_ON, LAST = 0, 16  # seed; steps whose training losses are averaged


class Optimisers(Parts):
    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen)
        self.model = GPT(
            num_layers=4, hidden=64 if self.tiny else 128, num_heads=4, vocab=self.vocab, num_experts=16,
            experts_per_token=2, experts=Experts(ffn=128, router=TopK(balance="bias")),
        )  # fmt: skip

    def trained(self, seed: int, kind: str, rates: dict[str, Any]) -> dict[str, Any]:
        schedule = {"kind": "wsd", "warmup": 20, "decay": 0.25}
        is_mixed = kind == "experts by adamw"
        optim = {"kind": "muon" if is_mixed else kind, "weight_decay": 0.1, "schedule": schedule} | rates
        name = "-".join([*kind.split(), *map(str, rates.values())])
        entry = ("-c", BY_ADAMW) if is_mixed else ("-m", "atelier.engine.train")
        part = self.part(name, seed, {"model": self.role(self.model, "model", optim=optim)}, entry=entry)
        folder = self.store / f"seed-{seed}" / name / "trajectory" / "model" / FOLDER
        lines = merge((path.name, path.read_text()) for path in sorted(folder.iterdir()))
        values = [line.get("values", {}).get("loss") for line in lines]
        losses = [loss for loss in values if loss is not None]
        return part | {"training_loss": statistics.mean(losses[-LAST:])}


def main() -> None:
    chosen = options(__doc__ or "", steps=320, store="experts-optim")
    bench = Optimisers(chosen)
    numbers: dict[str, Any] = {"steps": bench.steps, "rates": {}, "losses": {}, "cpu_s": {}}
    for kind, rates in RATES.items():
        tried = [(bench.trained(TUNED_ON, kind, rate)["training_loss"], rate) for rate in rates]
        best = min(tried, key=lambda each: each[0])[1]
        found = [bench.trained(seed, kind, best) for seed in chosen.seeds]
        numbers["rates"][kind] = {"taken": best, "tried": [(round(loss, 4), rate) for loss, rate in tried]}
        numbers["losses"][kind] = [part["loss"]["model"] for part in found]
        numbers["cpu_s"][kind] = round(statistics.median(part["cpu_s"] for part in found), 1)
    ours = numbers["losses"]["muon"]
    for kind in list(RATES)[1:]:
        gaps = [other - one for one, other in zip(ours, numbers["losses"][kind], strict=True)]
        found = {"mean": round(statistics.mean(gaps), 4), "interval": interval(gaps)}
        numbers[f"{kind} - muon, nats"] = found
    keep("experts_optim", numbers, is_trial=bench.tiny or len(chosen.seeds) < 3, made_by=bench.made_by)


if __name__ == "__main__":
    main()
