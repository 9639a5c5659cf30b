"""MoEfication of dense models: the increase of held-out loss and the speedup of the MLPs when each token uses
a part of the experts. Experts are clusters of neurons that are active together or have similar weights,
beside random neurons; the learned router is compared with the best choice.

python benchmarks/moefy.py [--seeds 1 2 3] [--steps 300] [--store DIR] [--tiny]     finished parts are reused

Goals, with ReLU and a quarter of the experts: the loss rises by at most 0.1 nat, and CPU seconds a token of
the MLPs fall by 1.5 times; no goal with SwiGLU. One seed of the other activations.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from machine import keep
from parts import Parts, interval, options, published
from torch import Tensor, nn

from atelier.engine.config.blocks import MLPKind
from atelier.engine.config.conversion.moefy import Moefy
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.run_file import RunFile
from atelier.engine.conversion.measure import held_out, mean_loss
from atelier.engine.convert import convert
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.engine.model.activation import activated
from atelier.engine.model.contract import Model
from atelier.engine.model.load import build, read_model
from atelier.engine.model.moe import MoE
from atelier.engine.model.routing import Routed, TokenRows
from atelier.engine.parallel.gang import keep_freed_memory

HIDDEN, FFN, SHARES = 512, 3072, (0.125, 0.25, 0.5, 1.0)
HELD_OUT, ROWS, ROUNDS = 16384, 16, 15
WAYS = (("coactivation", 32), ("weights", 32), ("random", 32), ("coactivation", 16))  # and experts of a block
BEST, FEW = WAYS[0], (WAYS[0], WAYS[2])  # FEW: of further models
CPU = torch.device("cpu")


class Divided(Parts):
    """Dense models, and what they are as mixtures."""

    def __init__(self, chosen: Any) -> None:
        super().__init__(chosen, sequence=128)
        self.batch = 4 if self.tiny else 16
        self.scratch = self.store / "scratch"
        self.tokens = open_input(self.inputs["tokens"])
        count = 1024 if self.tiny else HELD_OUT
        self.rows, self.text = held_out(self.tokens, self.scratch, self.sequence, count)

    def dense(self, seed: int, mlp: MLPKind) -> tuple[ArtifactInput, dict[str, Any]]:
        hidden, ffn = (64, 384) if self.tiny else (HIDDEN, FFN)
        model = GPT(num_layers=2, hidden=hidden, num_heads=8, ffn=ffn, mlp=mlp, vocab=self.vocab)
        schedule = {"kind": "wsd", "warmup": 20, "decay": 0.25}
        optim = {"kind": "adamw", "lr": 1.5e-3, "schedule": schedule}
        part = self.part(
            mlp, seed, {"dense": self.role(model, "dense", optim=optim)}, precision="bf16", eval_sequences=64
        )
        return open_input(self.publish(seed, mlp, "dense")), part

    def mixture(
        self, seed: int, mlp: MLPKind, by: str, number: int, source: ArtifactInput
    ) -> tuple[Model, dict[str, Any]]:
        """A model as a mixture, and what the record of its conversion says."""
        place = self.store / f"seed-{seed}" / mlp
        name = f"{by}-{number}"
        told = place / f"{name}.json"
        rule = Moefy(num_experts=number, experts_per_token=number // 4, by=cast(Any, by))
        if not told.exists():
            inputs = {"model": source.url, "tokens": self.inputs["tokens"]}
            run = RunFile(
                schema=1, task="convert", version=1, config={"rule": rule.model_dump(mode="json")},
                inputs=inputs, outputs={"model": str(place / name)}, scratch=str(self.scratch),
                layout=Parallel(shard=1, threads=self.threads, device="cpu"),
            )  # fmt: skip
            began = time.process_time()
            summary = convert(run)
            told.write_text(json.dumps(summary | {"cpu_s": round(time.process_time() - began, 1)}))
        model, _ = read_model(
            open_input(published(place / name, place / "published" / name)), self.scratch, dtype=torch.float32
        )
        return model.eval(), json.loads(told.read_text())

    def measured(self, seed: int, mlp: MLPKind, ways: Sequence[tuple[str, int]] = FEW) -> dict[str, Any]:
        """Of one dense model: losses before and after."""
        source, part = self.dense(seed, mlp)
        place = self.store / f"seed-{seed}" / mlp / "measured.json"
        if place.exists():
            return json.loads(place.read_text())
        dense = read_model(source, self.scratch, dtype=torch.float32)[0].eval()
        loss = mean_loss(dense, self.rows, CPU)
        found: dict[str, Any] = {"dense_loss": loss, "training_cpu_s": round(part["cpu_s"], 1), "rise": {}}
        for by, number in ways:
            model, told = self.mixture(seed, mlp, by, number, source)
            way = f"{by}, {number} experts"
            for share in SHARES:
                for who in ("router", "best"):
                    asked = with_share(model, share)
                    if who == "best":
                        choose_best(asked)
                    rise = mean_loss(asked, self.rows, CPU) - loss
                    found["rise"][f"{way}, {who}, {share:g}"] = round(rise, 5)
            held = list(told["held"].values())
            found |= {f"held, {way}": {key: mean([each[key] for each in held]) for key in ("chosen", "best")}}
            found |= {"active": mean([each["active"] for each in held])}
            found[f"conversion_cpu_s, {way}"] = told["cpu_s"]
        place.write_text(json.dumps(found, indent=1))
        print(seed, mlp, json.dumps(found), flush=True)
        return found

    def seconds(self, seed: int, mlp: MLPKind, ways: Sequence[tuple[str, int]] = FEW) -> dict[str, Any]:
        """Of one dense model: those of its MLPs, and of its mixtures of neurons that are active together."""
        source, _ = self.dense(seed, mlp)
        place = self.store / f"seed-{seed}" / mlp / "seconds.json"
        if place.exists():
            return json.loads(place.read_text())
        dense, found = read_model(source, self.scratch, dtype=torch.float32)[0].eval(), {}
        for by, number in ways:
            if by == BEST[0]:
                model, _ = self.mixture(seed, mlp, by, number, source)
                for rows in (ROWS, 1):
                    found[f"{number} experts, {rows} rows"] = self.timed(dense, model, rows)
        place.write_text(json.dumps(found, indent=1))
        return found

    def timed(self, dense: Model, mixture: Model, rows: int) -> dict[str, Any]:
        """CPU microseconds a token of all MLPs, on what the dense model's read of held-out text."""
        batch = {name: torch.from_numpy(values[:rows]) for name, values in self.rows[0].items()}
        read: list[Tensor] = []
        mlps = [cast(nn.Module, block.mlp) for block in dense.blocks]
        handles = [mlp.register_forward_pre_hook(lambda _, given: read.append(given[0])) for mlp in mlps]
        with torch.inference_mode():
            dense(batch)
        for handle in handles:
            handle.remove()
        ways: dict[str, list[Callable[[Tensor], object]]] = {"dense": [*mlps]}
        for share in SHARES:
            blocks = with_share(mixture, share).blocks
            ways[f"{share:g}"] = [cast(nn.Module, block.mlp) for block in blocks]
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        with torch.inference_mode():
            for number in range(2 + ROUNDS * (ROWS // rows)):
                for name in order:
                    began = time.process_time()
                    for mlp, x_BTD in zip(ways[name], read, strict=True):
                        mlp(x_BTD)
                    if number >= 2:
                        seconds[name].append(time.process_time() - began)
                order = order[1:] + order[:1]
        torch.set_num_threads(before)
        count = batch["tokens_BT"].numel()
        found = {name: round(1e6 * statistics.median(each) / count, 3) for name, each in seconds.items()}
        times = {f"dense / {name}": round(found["dense"] / found[name], 3) for name in list(ways)[1:]}
        return {"us_a_token": found, **times}


def with_share(model: Model, share: float) -> Model:
    """The same weights, a share of the experts for each token."""
    spec = cast(MixedBlocks, model.spec)
    other = build(spec.model_copy(update={"experts_per_token": round(share * spec.num_experts)}))
    other.load_state_dict(model.state_dict())
    return other.eval()


def choose_best(model: Model) -> None:
    """Have each token meet the experts that hold most of its activations, which takes computing all."""
    for module in model.modules():
        if isinstance(module, MoE):
            per_token = cast(int, module.router.per_token)
            module.router.__dict__["route"] = best_of(module, per_token)


def best_of(mixture: MoE, per_token: int) -> Callable[[Tensor, TokenRows], Routed]:
    *into, down_XDE = mixture.experts.weights()

    def route(x_ND: Tensor, rows: TokenRows) -> Routed:
        h_NF = activated(mixture.experts.activation, [x_ND @ weight.flatten(0, 1).T for weight in into])
        h_NXE = h_NF.abs().unflatten(1, (mixture.num_experts, -1))
        mass_NX = (h_NXE * down_XDE.norm(dim=1) if len(into) == 2 else h_NXE).sum(-1)
        chosen_NK = mass_NX.topk(per_token).indices
        return Routed(chosen_NK, torch.ones_like(chosen_NK, dtype=x_ND.dtype), None, {})

    return route


def mean(values: list[float]) -> float:
    return round(statistics.mean(values), 4)


def main() -> None:
    chosen = options(__doc__ or "", steps=300, store="moefy")
    bench = Divided(chosen)
    torch.set_num_threads(chosen.threads)
    keep_freed_memory()  # as in training: for all ways alike
    first = chosen.seeds[0]
    models: list[tuple[int, MLPKind]] = [(seed, "relu") for seed in chosen.seeds]
    models.append((first, "swiglu"))
    by_seed: dict[int, dict[str, Any]] = {seed: {} for seed in chosen.seeds}
    for seed, mlp in models:
        by_seed[seed][mlp] = bench.measured(seed, mlp, WAYS if (seed, mlp) == models[0] else FEW)
    for seed, mlp in models:  # all of them on the machine as it is now
        by_seed[seed][mlp]["mlp"] = bench.seconds(seed, mlp, WAYS if (seed, mlp) == models[0] else FEW)
    relu = [each["relu"] for each in by_seed.values()]
    rises = [each["rise"][f"{BEST[0]}, {BEST[1]} experts, router, 0.25"] for each in relu]
    times = [each["mlp"][f"{BEST[1]} experts, {ROWS} rows"]["dense / 0.25"] for each in relu]
    numbers = {
        "steps": bench.steps, "hidden": HIDDEN, "ffn": FFN, "experts": BEST[1],
        "held_out": bench.text, "seeds": chosen.seeds,
        "relu, 0.25: rise in nats": {"mean": mean(rises), "interval": interval(rises), "goal": 0.1},
        "relu, 0.25: dense / mixture, MLPs' CPU seconds": {"median": statistics.median(times), "goal": 1.5},
        "by_seed": by_seed,
    }  # fmt: skip
    keep("moefy", numbers, is_trial=bench.tiny or len(chosen.seeds) < 3, made_by=bench.made_by)


if __name__ == "__main__":
    main()
