"""The plan of MT-NLG 530B (2201.11990) against published figures; predictions of its step on more GPUs.

python benchmarks/mt_nlg.py      some seconds

One constant is fitted: the share of a device's peak that large matrix products reach (`matmul`), so that a
step on 2240 GPUs (DP 8) takes the 60.1 s of section 2.4. With it, the times of 2800 (DP 10) and 3360 (DP 12)
GPUs are predicted; nothing is fitted on them. Parameters, memory and the exact shares are arithmetic.
"""

import sys
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE)]

from machine import keep

from atelier.engine.config.data import Data
from atelier.engine.config.exact_shares import stretches_of
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.checks import at_step
from atelier.engine.plan.estimate import Estimate, estimate
from atelier.flows.run.auto import trained
from atelier.flows.run.compose import RunConfig, compose

VOCAB = 50257
PUBLISHED_S, TFLOPS = 60.1, 126  # section 2.4: a step on 2240 GPUs; a GPU's speed, recomputation counted
STATE_BYTES = 20  # section 2.3: a parameter's, of its gradient and of its optimiser's states
SAMPLES = 1_000_000


def main() -> None:
    frozen = compose("pretrain", ["experiment=mt_nlg_530b", "pool=selene"])
    [role] = trained(frozen.arguments).values()
    arguments: Any = frozen.arguments
    train = arguments.train
    layout = Parallel.model_validate(arguments.parallel.model_dump() | {"threads": 1})
    share = fitted(role, train, layout, frozen.pool)
    pool = frozen.pool.model_copy(update={"matmul": share})
    numbers = {
        "parameters": parameters(role.model.resolved(VOCAB)),
        "memory of a GPU": memory(role, train, layout, frozen.pool),
        "step": {
            "fitted": {"matmul": round(share, 4), "of the pool": frozen.pool.device.matmul},
            "rows": [step(role, train, layout, pool, data) for data in (8, 10, 12)],
        },
        "ramp": [ramp(train, layout, data) for data in (8, 10, 12)],
        "training": training(role, train, layout, pool),
        "shares": shares(frozen),
    }
    keep("mt_nlg", numbers)


def fitted(role: Role, train: Train, layout: Parallel, pool: Pool) -> float:
    """The share of the peak with which the plan's step takes the published time, by bisection."""
    low, high = 0.05, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        found = of(role, train, layout, pool.model_copy(update={"matmul": middle}))
        low, high = (middle, high) if found.step_s > PUBLISHED_S else (low, middle)
    return middle


def of(role: Role, train: Train, layout: Parallel, pool: Pool) -> Estimate:
    return estimate(role, train, layout, pool, VOCAB, 1)


def parameters(model: Any) -> dict[str, Any]:
    """The exact count, by part, and the paper's. `12 L h^2 ...`: equation 2 of PTD-P (2104.04473)."""
    assert isinstance(model, GPT)
    sizes = {name: prod(shape) for name, shape in model.shapes().items()}
    layers, hidden, rows = model.num_layers, model.hidden, model.tokens
    formula = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (rows + 2048) / (12 * layers * hidden))
    return {
        "exact": sum(sizes.values()),
        "blocks": sum(size for name, size in sizes.items() if name.startswith("blocks.")),
        "embedding": sizes["embed.weight"], "positions": sizes["positions.weight"],
        "final norm": sizes["norm.weight"] + sizes.get("norm.bias", 0),
        "formula": round(formula), "paper": "530 B",
        "vocabulary": f"{VOCAB} padded to {rows}, a multiple of 128 times tensor 8",
    }  # fmt: skip


def memory(role: Role, train: Train, layout: Parallel, pool: Pool) -> dict[str, Any]:
    """GB of the fullest GPU by part; the paper's 20 bytes a parameter, and its checkpoints of activations:
    2 bytes x sequence x hidden x 105 layers for each micro-batch of a replica.
    """
    found = of(role, train, layout, pool)
    model = role.model.resolved(VOCAB)
    assert isinstance(model, GPT)
    params, stages = model.num_params(), layout.pipeline * layout.tensor
    kept = 2 * train.sequence * model.hidden * model.num_layers
    in_flight = layout.pipeline  # micro-batches that the first stage of 1F1B holds
    return {
        "of": 80, "planned": round(found.memory_gb, 2), "by part": found.parts()["memory_gb"],
        "states by the paper, all": f"{STATE_BYTES * params / 1e12:.2f} TB",
        "states by the paper, mean of a GPU": round(STATE_BYTES * params / stages / 1e9, 2),
        "checkpoints of a micro-batch": round(kept / 1e9, 3), "paper's": 8.81,
        "checkpoints of 1920 samples": f"{train.global_batch * kept / 1e12:.2f} TB",
        "paper's, all": "16.9 TB",
        "checkpoints in flight, of a GPU": round(kept / model.num_layers * 3 * in_flight / 1e9, 3),
    }  # fmt: skip


def step(role: Role, train: Train, layout: Parallel, pool: Pool, data: int) -> dict[str, Any]:
    """Seconds of a step at this data-parallel degree, and its parts."""
    own = layout.model_copy(update={"replicate": data})
    found = of(role, train, own, pool)
    peak = float(pool.device.peak_tflops)
    return {
        "gpus": own.ranks, "dp": data, "micro-batches": train.global_batch // data,
        "is": "fitted" if data == 8 else "predicted", "step_s": round(found.step_s, 2),
        "TFLOP/s a GPU, recomputation counted": round(found.hfu * peak, 1),
        "TFLOP/s a GPU": round(found.mfu * peak, 1),
        "paper's TFLOP/s a GPU": TFLOPS if data == 8 else None,
        "seconds": found.parts()["seconds"],
    }  # fmt: skip


def ramp(train: Train, layout: Parallel, data: int) -> dict[str, Any]:
    """The ramp at this data-parallel degree: steps, and rows of padding."""
    own = layout.model_copy(update={"replicate": data})
    firsts = train.first_steps()
    steps = [after - first for first, after in pairwise(firsts)]
    sizes = [train.at(first).global_batch for first in firsts[:-1]]
    rows = [at_step(train, own, first).global_batch for first in firsts[:-1]]
    return {
        "dp": data, "sizes": len(firsts), "steps": firsts[-1],
        "sizes with padding": sum(row > size for row, size in zip(rows, sizes, strict=True)),
        "indivisible by dp alone": sum(size % data > 0 for size in sizes),
        "rows computed a sample": round(
            sum(n * row for n, row in zip(steps, rows, strict=True))
            / sum(n * size for n, size in zip(steps, sizes, strict=True)), 3,
        ),
    }  # fmt: skip


def training(role: Role, train: Train, layout: Parallel, pool: Pool) -> dict[str, Any]:
    """The whole training of 270e9 tokens with the fitted constant, sizes of the ramp at their own speed."""
    firsts, seconds = train.first_steps(), 0.0
    for first, after in zip(firsts, [*firsts[1:], train.num_steps], strict=True):
        now = at_step(train, layout, first).model_copy(update={"progressive": train.progressive})
        plain = Train(
            steps=1, global_batch=now.global_batch, micro_batch=train.micro_batch, sequence=train.sequence
        )
        seconds += (after - first) * of(role, plain, layout, pool).step_s
    return {"steps": train.num_steps, "days": round(seconds / 86400, 1)}


def shares(frozen: RunConfig) -> dict[str, Any]:
    """The largest distance of a prefix of 10^6 samples from exact shares, for the exact assignment; and the
    error of shares rounded to blocks of 4096, for comparison.
    """
    from atelier.engine.data.blend import shares as in_blocks

    arguments: Any = frozen.arguments
    data = arguments.data
    assert isinstance(data, Data)
    weights = {name: source.weight for name, source in data.sources().items()}
    exact = np.array(list(weights.values())) / sum(weights.values())
    [stretch] = stretches_of([(0, list(weights.values()))], [0] * len(weights), 1, 0)
    sets, _ = stretch.chosen(np.arange(SAMPLES))
    counts = np.arange(1, SAMPLES + 1)
    worst = max(np.abs(np.cumsum(sets == n) - counts * one).max() for n, one in enumerate(exact))
    block = np.array(in_blocks(list(weights.values()))) / 4096 / exact - 1
    place = int(np.abs(block).argmax())
    return {
        "largest distance in samples": round(float(worst), 6),
        "bound": round(1 - 1 / (2 * len(exact) - 2), 6),
        "samples": SAMPLES, "period": sum(stretch.weights),
        "largest error in blocks": f"{list(weights)[place]}: {100 * block[place]:+.2f} %",
    }  # fmt: skip


if __name__ == "__main__":
    main()
