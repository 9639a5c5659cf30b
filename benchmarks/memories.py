"""Product-key memories (1907.05242): a model with a memory beside the same without, and beside one with twice
its layers: held-out loss, CPU seconds of training and of reading; which value rows and keys text reads.

python benchmarks/memories.py [--seeds 1 2 3] [--steps 120] [--store DIR] [--tiny]   finished parts are reused
"""

import argparse
import math
import statistics
import time
from typing import Any, cast

import torch
from machine import keep
from parts import Parts, interval, options
from torch import Tensor

from atelier.engine.config.memory import ProductKeyMemory
from atelier.engine.config.model.gpt import GPT
from atelier.engine.conversion.measure import held_out
from atelier.engine.io.artifact import open_input
from atelier.engine.model.contract import Model
from atelier.engine.model.load import read_model
from atelier.engine.model.product_keys import ProductKeys, best_pairs, key_reads, read_metrics
from atelier.engine.parallel.gang import keep_freed_memory

HELD_OUT, ROUNDS = 65536, 9
PLAIN, WITH, DEEP = "plain", "with a memory", "twice the layers"


class Remembering(Parts):
    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen)
        self.tokens, self.scratch = open_input(self.inputs["tokens"]), self.store / "scratch"
        self.rows, self.text = held_out(
            self.tokens, self.scratch, self.sequence, 4096 if self.tiny else HELD_OUT
        )
        layers, hidden = (2, 64) if self.tiny else (2, 192)
        keys = ProductKeyMemory(blocks=(1,), keys=16 if self.tiny else 128)
        shape: dict[str, Any] = {"hidden": hidden, "num_heads": 4, "num_kv_heads": 2, "vocab": self.vocab}
        self.models = {
            PLAIN: GPT(num_layers=layers, **shape),
            WITH: GPT(num_layers=layers, memory=keys, **shape),
            DEEP: GPT(num_layers=2 * layers, **shape),
        }

    def trained(self, seed: int, name: str) -> tuple[Model, dict[str, Any]]:
        place = name.replace(" ", "-")
        part = self.part(place, seed, {"model": self.role(self.models[name], "model")})
        model, _ = read_model(
            open_input(self.publish(seed, place, "model")), self.scratch, dtype=torch.float32
        )
        return model.eval(), {"loss": round(part["loss"]["model"], 4), "cpu_s": round(part["cpu_s"], 1)}

    def usage(self, model: Model) -> dict[str, float]:
        """Of held-out text: the share of value rows that a token reads, their divergence from equal reads
        (by the weights with which they are read), dead keys.
        """
        memory = next(module for module in model.modules() if isinstance(module, ProductKeys))
        number = memory.keys.shape[2]
        weight_R, reads_M = torch.zeros(number**2, dtype=torch.float64), 0

        def see(_module: object, given: tuple[Tensor, ...]) -> None:
            nonlocal reads_M
            query_NHE = torch.nn.functional.linear(given[0].flatten(0, -2), memory.queries)
            query_NHE = query_NHE.unflatten(-1, (memory.heads, -1))
            query_NHE = memory.norm(query_NHE) if memory.has_norm else query_NHE
            scores_NHK, pairs_NHK = best_pairs(query_NHE, memory.keys, memory.per_token)
            weight_R.index_add_(0, pairs_NHK.flatten(), scores_NHK.softmax(-1).double().flatten())
            reads_M = reads_M + key_reads(pairs_NHK, torch.ones(len(pairs_NHK), dtype=torch.bool), number)

        handle = memory.register_forward_pre_hook(see)
        with torch.inference_mode():
            for batch in self.rows:
                model({name: torch.from_numpy(values) for name, values in batch.items()})
        handle.remove()
        share_R = weight_R / weight_R.sum()
        kl = torch.special.xlogy(share_R, share_R * len(share_R)).sum()
        keys = read_metrics(cast(Tensor, reads_M), memory.heads)
        return {
            "value rows": len(share_R), "rows read": round(float((weight_R > 0).double().mean()), 4),
            "kl of rows, nats": round(float(kl), 4), "of at most": round(math.log(len(share_R)), 4),
            "dead keys": round(keys["dead"], 4), "kl of keys, nats": round(keys["kl"], 4),
        }  # fmt: skip

    def seconds(self, models: dict[str, Model]) -> dict[str, float]:
        """CPU microseconds a token of a pass over held-out rows: medians of rounds in rotated order."""
        batch = {name: torch.from_numpy(values[:8]) for name, values in self.rows[0].items()}
        found: dict[str, list[float]] = {name: [] for name in models}
        order = list(models)
        torch.set_num_threads(1)
        with torch.inference_mode():
            for number in range(2 + ROUNDS):
                for name in order:
                    began = time.process_time()
                    models[name](batch)
                    if number >= 2:
                        found[name].append(time.process_time() - began)
                order = order[1:] + order[:1]
        count = batch["tokens_BT"].numel()
        return {name: round(1e6 * statistics.median(each) / count, 2) for name, each in found.items()}


def main() -> None:
    chosen = options(__doc__ or "", steps=120, store="memories")
    chosen.threads = 1
    bench = Remembering(chosen)
    torch.set_num_threads(1)
    keep_freed_memory()
    by_seed: dict[int, dict[str, Any]] = {}
    times: list[dict[str, float]] = []
    for seed in chosen.seeds:
        made = {name: bench.trained(seed, name) for name in bench.models}
        by_seed[seed] = {name: told for name, (_, told) in made.items()}
        by_seed[seed][WITH] |= {"usage": bench.usage(made[WITH][0])}
        times.append(bench.seconds({name: model for name, (model, _) in made.items()}))
    parts = {name: spec.num_params() for name, spec in bench.models.items()}
    below = {
        other: [each[other]["loss"] - each[WITH]["loss"] for each in by_seed.values()]
        for other in (PLAIN, DEEP)
    }
    usage = [each[WITH]["usage"] for each in by_seed.values()]
    numbers = {
        "steps": bench.steps, "seeds": chosen.seeds, "held_out": bench.text, "parameters": parts,
        "FLOPs a token": {n: spec.flops_per_token(bench.sequence) for n, spec in bench.models.items()},
        "nats below": {
            name: {"mean": round(statistics.mean(each), 4), "interval": interval(each)}
            for name, each in below.items()
        },
        "us a token, reading": {
            name: statistics.median(each[name] for each in times) for name in bench.models
        },
        "cpu_s, training": {
            name: statistics.median(each[name]["cpu_s"] for each in by_seed.values()) for name in bench.models
        },
        "usage": {name: round(statistics.mean(each[name] for each in usage), 4) for name in usage[0]},
        "by_seed": by_seed,
    }  # fmt: skip
    is_trial = bench.tiny or len(chosen.seeds) < 3
    keep("memories", numbers, is_trial=is_trial, made_by=bench.made_by)


if __name__ == "__main__":
    main()
