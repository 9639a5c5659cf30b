"""Plans against published figures: parameter counts, throughput of a table's rows, the cost of recomputation,
and the layout of the largest model. Nothing is trained: only the arithmetic of engine/plan runs.

python benchmarks/anchors.py      some seconds

The figures are in benchmarks/published, each with its source. One constant, the share of a device's peak that
large matrix products reach, is fitted on the rows of table 2 that say `fit`; nothing is fitted on the rows
that are compared. Where a table leaves out micro-batch and interleaving, plans take the fastest that fit.
"""

import csv
import sys
from math import prod
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent), str(HERE)]

from machine import keep

from atelier.engine.config.base import parse
from atelier.engine.config.model.ernie import Ernie
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import Estimate, estimate
from atelier.engine.plan.search import LayoutOption, fastest, search

A100 = Pool(gpu="a100-80g")
VOCAB, SEQUENCE = 51200, 2048
PEAK = 312.0


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a table, numbers as numbers."""
    with (HERE / "published" / f"{name}.csv").open() as file:
        return [{key: _number(text) for key, text in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> Any:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def role(row: dict[str, Any]) -> Role:
    """The GPT of a row, as Megatron-LM builds it."""
    shape = {"num_layers": row["layers"], "hidden": row["hidden"], "num_heads": row["heads"]}
    kind = {"kind": "gpt", "mlp": "gelu", "norm": "layer", "positions": "learned"}
    model = kind | shape | {"vocab": row.get("vocab", VOCAB), "max_positions": SEQUENCE}
    optim = {"kind": "adamw", "lr": 1e-4}
    return parse(Role, {"model": model, "objective": {"lm": {"kind": "lm"}}, "optim": optim}, "row")


def train(row: dict[str, Any]) -> Train:
    micro = row.get("micro_batch", "auto")
    return Train(steps=1, global_batch=row["global_batch"], sequence=SEQUENCE, micro_batch=micro)


def layout(row: dict[str, Any], **more: Any) -> Parallel:
    replicate = row["gpus"] // (row["tp"] * row["pp"])
    axes = {"tensor": row["tp"], "pipeline": row["pp"], "replicate": replicate, "shard": 1, "threads": 1}
    return Parallel(**axes | {"recompute": "full", "sequence_parallel": False} | more)


def tflops(found: Estimate) -> float:
    """TFLOP/s a device, what is computed again counted, as PTD-P counts it."""
    return found.hfu * PEAK


def parameters() -> list[dict[str, Any]]:
    """Parameter counts of named models, in units of 1e9."""
    found = []
    for row in rows("parameter_counts"):
        count = COUNTED.get(row["model"])
        if count is None:
            found.append({"model": row["model"], "published": row["params_b"], "ours": "no such kind yet"})
            continue
        ours = count() / 1e9
        error = round(100 * (ours / row["params_b"] - 1), 3)
        found.append({"model": row["model"], "published": row["params_b"], "ours": ours, "percent": error})
    return found


def titan() -> int:
    """The universal blocks of ERNIE 3.0 Titan, which are what its 260 billions count."""
    model = Ernie(num_layers=48, hidden=12288, num_heads=192, ffn=196608, vocab=40000)
    inside = [size for name, size in model.universal.shapes().items() if name.startswith("blocks.")]
    return sum(prod(size) for size in inside)


def mixture(num_experts: int) -> int:
    """A GPT with experts of two matrices, as SE-MoE's; our experts have three, so that its experts are
    counted beside a dense model's MLP.
    """
    dense = GPT(num_layers=12, hidden=4096, num_heads=64, ffn=16384, vocab=50304, mlp="gelu", norm="layer")
    expert = 2 * dense.hidden * dense.inner
    return dense.num_params() + dense.num_layers * ((num_experts - 1) * expert + num_experts * dense.hidden)


COUNTED = {"ernie3-titan": titan, "se-moe-8e": lambda: mixture(8), "se-moe-32e": lambda: mixture(32)}


def throughput() -> list[dict[str, Any]]:
    """Table 1 of PTD-P: nothing of it is fitted."""
    found = []
    for row in rows("ptdp_table1"):
        best: LayoutOption = fastest(role(row), train(row), A100, layout(row), recompute=("full",))
        ours = tflops(best.estimate)
        found.append(
            {
                "params_b": row["params_b"], "gpus": row["gpus"], "micro_batch": best.micro_batch,
                "stages a rank": best.parallel.num_stages // best.parallel.pipeline,
                "published": row["tflops_per_gpu"], "ours": round(ours, 1),
                "percent": round(100 * (ours / row["tflops_per_gpu"] - 1), 2),
            }
        )  # fmt: skip
    return found


def fitted() -> list[dict[str, Any]]:
    """Table 2's pipeline rows, on which the share of the peak is fitted; its ZeRO-3 row, which is not."""
    found = []
    for row in rows("ptdp_table2"):
        is_sharded = row["scheme"] == "zero3"
        more = {"replicate": 1, "shard": row["gpus"], "zero": 3} if is_sharded else {}
        ours = tflops(estimate(role(row), train(row), layout(row, **more), A100, vocab=VOCAB, steps=1))
        found.append(
            {
                "scheme": row["scheme"], "params_b": row["params_b"], "published": row["tflops_per_gpu"],
                "ours": round(ours, 1), "percent": round(100 * (ours / row["tflops_per_gpu"] - 1), 2),
            }
        )  # fmt: skip
    return found


def another_cluster() -> list[dict[str, Any]]:
    """MT-NLG on the same devices: the share of the plan's speed that its run reached, to be used for others
    of that cluster.
    """
    found = []
    for row in rows("mt_nlg_530b"):
        step_s = estimate(role(row), train(row | {"micro_batch": 1}), layout(row), A100, VOCAB, 1).step_s
        found.append(
            {"gpus": row["gpus"], "published_s": row["iteration_s"], "ours_s": round(step_s, 2),
             "reached": round(step_s / row["iteration_s"], 3)}
        )  # fmt: skip
    return found


def recomputation() -> list[dict[str, Any]]:
    """Table 5 of 2205.05198: nothing is fitted. MFU and HFU follow from the published times."""
    found = []
    for row in rows("recompute_table5"):
        many = {"schedule": "interleaved", "interleave": row["interleave"]} if row["interleave"] > 1 else {}
        each = {}
        for name, more in (("full", {}), ("selective", {"sequence_parallel": True})):
            parallel = layout(row, recompute=name, **many, **more)
            each[name] = estimate(role(row), train(row), parallel, A100, VOCAB, 1)
        published = row["full_recompute_s"] / row["selective_sp_s"]
        ours = each["full"].step_s / each["selective"].step_s
        slower = each["selective"].step_s / row["selective_sp_s"]
        found.append(
            {
                "model": row["model"], "ratio published": round(published, 4), "ratio ours": round(ours, 4),
                "percent": round(100 * (ours / published - 1), 2),
                "full s": round(each["full"].step_s, 2), "selective s": round(each["selective"].step_s, 2),
                "mfu published": row["mfu_percent"], "hfu published": row["hfu_percent"],
                "mfu": round(100 * each["selective"].mfu * slower, 2),
                "hfu": round(100 * each["selective"].hfu * slower, 2),
                "mfu planned": round(100 * each["selective"].mfu, 2),
                "hfu planned": round(100 * each["selective"].hfu, 2),
            }
        )  # fmt: skip
    return found


def layouts() -> list[str]:
    """The search's first ten meshes for MT-NLG 530B on its 2240 GPUs."""
    [row] = rows("mt_nlg_530b")
    found, _ = search(role(row), train(row), A100, row["gpus"], vocab=VOCAB)
    return [option.mesh for option in found[:10]]


def main() -> None:
    numbers = {
        "parameters": parameters(), "table 1": throughput(), "table 2": fitted(),
        "another cluster": another_cluster(), "recomputation": recomputation(), "search": layouts(),
    }  # fmt: skip
    keep("anchors", numbers)


if __name__ == "__main__":
    main()
