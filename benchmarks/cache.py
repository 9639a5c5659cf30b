"""Hit rates of cache policies for experts, beside the optimum (Belady: evict the expert that is needed last),
on the requests of a trained mixture: token by token as in generation, and forward and backward over rows as
in training, with few and with many tokens a step.

python benchmarks/cache.py [--store DIR] [--steps 240]    trains the teacher of benchmarks/merged.py if
missing
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from machine import keep, use_own_code
from merged import made, newest, run
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import Sampling
from atelier.engine.data.tokens import Windows
from atelier.engine.inference.opened import read_generator
from atelier.engine.model.moe import ExpertWeights
from atelier.engine.tier.policy import POLICIES, LeastOftenUsed, Policy

SHARES = (0.125, 0.25, 0.5, 0.75)  # of all experts, in the cache
SEQUENCE, ROWS, TOKENS = 256, 24, 400

use_own_code()


def listen(model: nn.Module, trace: list[int]) -> None:
    """Note whom each mixture asks for, in order: slots, those of the first mixture first."""
    mixtures = [module for module in model.modules() if isinstance(module, ExpertWeights)]
    for place, experts in enumerate(mixtures):
        experts.compute = partial(_noted, experts.compute, trace, place * experts.num_experts)


def _noted(compute: Any, trace: list[int], first: int, x_PD: Tensor, counts_X: list[int]) -> Tensor:
    trace += [first + expert for expert, count in enumerate(counts_X) if count]
    return compute(x_PD, counts_X)


def traces(store: Path) -> tuple[int, dict[str, list[int]]]:
    """Number of slots, and the traces by what was done."""
    generator = read_generator(made(store)["teacher"], store / "scratch", torch.device("cpu"))
    model = cast(nn.Module, generator.model)
    slots = sum(module.num_experts for module in model.modules() if isinstance(module, ExpertWeights))
    noted: list[int] = []
    listen(model, noted)
    for seed, prompt in enumerate(("def ", "import os\n", "class A", "# The ")):
        sampling = Sampling(max_tokens=TOKENS // 4, seed=seed)
        "".join(generator.stream(prompt, sampling))
    found = {"generation": noted.copy()}
    windows = Windows(newest(store, "tokens", "stdlib"), store / "scratch", "held_out", SEQUENCE)
    for name, tokens in (("training, 8 tokens a step", 8), ("training, 256 tokens a step", 256)):
        found[name] = []
        for row in range(ROWS):
            noted.clear()
            values = windows.batch(range(row, row + 1))
            with torch.inference_mode():
                model({key: torch.from_numpy(each[:, :tokens]) for key, each in values.items()})
            forward = noted.copy()
            found[name] += forward + forward[::-1]  # there and back; the optimiser's step is on the way
    return slots, found


def misses(trace: Sequence[int], size: int, policy: Callable[[], Policy]) -> int:
    rule, there, count = policy(), set[int](), 0
    for slot in trace:
        if slot not in there:
            count += 1
            if len(there) == size:
                leaves = rule.victim(sorted(there))
                there.remove(leaves)
                rule.left(leaves)
            there.add(slot)
        rule.used(slot)
    return count


def swept(trace: Sequence[int], size: int) -> dict[str, int]:
    """Misses of SE-MoE's rule (2205.10034, algorithm 2) with other parameters."""
    return {
        f"threshold {threshold}, decay {decay}, every {every}": misses(
            trace, size, partial(LeastOftenUsed, threshold, decay, every)
        )
        for threshold in (0, 2, 8)
        for decay in (0.1, 0.5, 0.9)
        for every in (30, 100, 300, 1000)
    }


def fewest(trace: Sequence[int], size: int) -> int:
    """Belady's."""
    after: list[float] = [math.inf] * len(trace)
    seen: dict[int, int] = {}
    for place in reversed(range(len(trace))):
        after[place] = seen.get(trace[place], math.inf)
        seen[trace[place]] = place
    there: dict[int, float] = {}  # when each is needed next
    count = 0
    for place, slot in enumerate(trace):
        if slot not in there:
            count += 1
            if len(there) == size:
                del there[max(there, key=lambda each: there[each])]
        there[slot] = after[place]
    return count


def decoding(store: Path) -> dict[str, Any]:
    """Tokens a second, drawn in a share of the memory that all weights take; files are in the page cache."""
    artifact = made(store)["teacher"]
    whole = read_generator(artifact, store / "scratch", torch.device("cpu"))
    total = sum(weight.nbytes for weight in cast(nn.Module, whole.model).parameters())
    found: dict[str, Any] = {"weights_mb": round(total / 1e6, 1)}
    texts = set()
    for share in (*SHARES, 1.0):
        generator = whole
        if share < 1.0:
            try:
                memory = int(share * total)
                generator = read_generator(artifact, store / "scratch", torch.device("cpu"), memory=memory)
            except ConfigError as error:
                found[f"{share:.0%} of the weights"] = str(error).splitlines()[0]
                continue
        seconds = []
        for seed in range(3):
            began = time.perf_counter()
            texts.add((seed, "".join(generator.stream("def ", Sampling(max_tokens=TOKENS // 4, seed=seed)))))
            seconds.append(time.perf_counter() - began)
        found[f"{share:.0%} of the weights"] = round(TOKENS / 4 / statistics.median(seconds), 1)
    assert len(texts) == 3, "texts differ by memory"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=Path("merged"))
    parser.add_argument("--steps", type=int, default=240)
    chosen = parser.parse_args()
    store = chosen.store.resolve()
    store.mkdir(exist_ok=True)
    run(store, 1, chosen.steps, ())
    slots, found = traces(store)
    numbers: dict[str, Any] = {"experts": slots, "unit": "misses of requests; above the fewest possible, %"}
    for name, trace in found.items():
        numbers[name] = {"requests": len(trace), "different": len(set(trace))}
        for share in SHARES:
            size = int(share * slots)
            least = fewest(trace, size)
            numbers[name][f"{size} in memory"] = {"fewest": least} | {
                policy: f"{count} (+{100 * (count - least) / least:.0f} %)"
                for policy in POLICIES
                for count in [misses(trace, size, POLICIES[policy])]
            }
        numbers[name]["lfu"] = swept(trace, int(slots / 2))
    numbers["tokens/s of generation in"] = decoding(store)
    keep("cache", numbers, is_trial=chosen.steps < 240)


if __name__ == "__main__":
    main()
