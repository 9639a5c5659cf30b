"""Savings from progressive learning (ERNIE 3.0), in which sequences and batches grow at first: CPU seconds
and tokens until the same loss, with and without.

python benchmarks/progressive.py [--seeds 1 2 3] [--steps 384] [--store DIR] [--tiny]      10 minutes a seed

Growing takes a third of the plain training's steps. It is tried with several total lengths, each with its
whole schedule of the learning rate. If the loss lies between two of them, the cost is interpolated linearly.
One thread: CPU seconds are those of the whole process, with 3 or 4 seconds of start and evaluation in all
ways.
"""

import argparse
import itertools
import statistics
from typing import Any

from machine import keep
from parts import Parts, interval, kept_seeds, options

GROWS = 1 / 3  # of the plain training's steps
LENGTHS = (1.0, 1.1, 1.22)  # of all steps, as a share of the plain training's; 1.22 has as many tokens


class Growing(Parts):
    """One model, plain and growing."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__(chosen, sequence=256)

    def seed(self, seed: int) -> dict[str, dict[str, float]]:
        """Loss, CPU seconds and tokens of every way."""
        model = {"model": self.role(self.teacher, "model")}
        parts = {"plain": self.part("plain", seed, model)}
        grows = {"steps": round(GROWS * self.steps)}
        for length in LENGTHS:
            steps = round(length * self.steps)
            parts[f"{length}"] = self.part(f"grows-{length}", seed, model, steps=steps, progressive=grows)
        return {
            way: {"loss": part["loss"]["model"], "cpu_s": part["cpu_s"], "tokens": part["tokens"]["model"]}
            for way, part in parts.items()
        }


def share(found: dict[str, dict[str, float]], cost: str) -> float | None:
    """The cost of the plain training's loss for the growing one, as a share of the plain one's; None where no
    length tried came to it, or even the shortest lies below it.
    """
    plain, grown = found["plain"], [found[f"{length}"] for length in LENGTHS]
    for before, after in itertools.pairwise(grown):
        if before["loss"] >= plain["loss"] >= after["loss"]:
            part = (before["loss"] - plain["loss"]) / (before["loss"] - after["loss"])
            return (before[cost] + part * (after[cost] - before[cost])) / plain[cost]
    return None


def summary(steps: int, by_seed: dict[int, dict[str, dict[str, float]]]) -> dict[str, Any]:
    seeds = list(by_seed.values())
    numbers: dict[str, Any] = {"steps": steps, "grows over": round(GROWS * steps)}
    for cost in ("cpu_s", "tokens"):
        shares = [share(found, cost) for found in seeds]
        known = [one for one in shares if one is not None]
        numbers[f"{cost} to the same loss / plain"] = {
            "by_seed": shares,  # a mean only of all seeds: those that come to it late would be missing
            "mean": round(statistics.mean(known), 4) if len(known) == len(shares) else None,
            "interval": interval(known) if len(known) == len(shares) else None,
        }  # fmt: skip
    for length in LENGTHS:
        way = f"{length}"
        losses = [found[way]["loss"] - found["plain"]["loss"] for found in seeds]
        costs = [found[way]["cpu_s"] / found["plain"]["cpu_s"] for found in seeds]
        numbers[f"{length} of the steps"] = {
            "nats above plain": round(statistics.mean(losses), 4), "interval": interval(losses),
            "cpu_s / plain": round(statistics.median(costs), 4),
        }  # fmt: skip
    return numbers | {"by_seed": by_seed}


def main() -> None:
    chosen = options(__doc__ or "", steps=384, store="progressive")
    chosen.threads = 1
    bench = Growing(chosen)
    seeds = kept_seeds("progressive", bench.steps) if chosen.go_on else {}
    for seed in chosen.seeds:
        seeds[seed] = bench.seed(seed)
        keep("progressive", summary(bench.steps, seeds), is_trial=chosen.tiny, made_by=bench.made_by)


if __name__ == "__main__":
    main()
