"""Training with 1 GB of expert states, a fifth of them in memory, beside the same training with all in
memory. It runs in a cgroup of the memory of the process without expert states and a quarter of the states.

python benchmarks/tiers.py [--steps 20] [--rows 64] [--folder .]     goals: the same bits; peak within 5 % of
        the plan; max(compute, reading or writing) 0.9 of the step time, at a batch whose plan hides the disk

compute: a step with all in memory. reading or writing: the part of a step in which one of the tier's threads
worked.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(PROJECT / "src"), str(PROJECT), str(Path(__file__).parent)]

from machine import keep, use_own_code
from ring import CGROUPS, Cgroup

from atelier.engine.config.experts import Experts
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.router.topk import TopK
from atelier.engine.extensions.offload.config.parallel.tiers import Tiers
from atelier.engine.extensions.offload.cost import TierCost, off_device
from atelier.engine.plan.estimate import estimate

HIDDEN, INNER, LAYERS, EXPERTS, SEQUENCE = 512, 1024, 4, 14, 256
STATES = LAYERS * EXPERTS * 3 * HIDDEN * INNER * 12  # bytes: weights and two moments
SHARE = 0.2  # of them is the memory of buffers, those of gradients too

use_own_code()


def layout_of(where: str, threads: int) -> Parallel:
    own: dict[str, Any] = (
        {"tiers": Tiers(experts="disk", host_gb=SHARE * STATES / 1e9)} if where == "disk" else {}
    )
    return Parallel(shard=1, threads=threads, compile="none", device="cpu", **own)


def training_of(folder: Path, chosen: dict[str, Any]) -> Any:
    from tests.engine.trainings import TrainingSetup, model, role, train

    setup = TrainingSetup(folder)
    experts = Experts(ffn=INNER, router=TopK(balance="bias"))
    shape = model(
        HIDDEN, num_layers=LAYERS, num_experts=EXPERTS, experts_per_token=2, experts=experts
    ).model_copy(update={"num_heads": 8})
    how = train(
        chosen["steps"], global_batch=chosen["rows"], micro_batch=chosen["rows"], sequence=SEQUENCE,
        checkpoint_every=10**6, eval_sequences=1, precision="fp32",
    )  # fmt: skip
    spec = role(shape=shape, lr=1e-3)
    return setup, spec, how, setup.training({"model": spec}, how)


def worker(chosen: dict[str, Any]) -> None:
    """Train in this process; seconds of a step, what the tier moved, the digest of the weights, the peak."""
    from model_memory import peak_mb

    from atelier.engine.extensions.offload import weights
    from atelier.engine.extensions.offload.experts import TieredExperts
    from atelier.engine.loop.stop import StopRequest
    from atelier.engine.parallel.gang import start_gang
    from atelier.engine.train import train as train_run

    made: list[TieredExperts] = []
    put_on_disk = weights.put_on_disk

    def seen(*given: Any) -> TieredExperts:
        made.append(put_on_disk(*given))
        return made[-1]

    weights.put_on_disk = seen
    folder = Path(chosen["folder"])
    setup, _, _, training = training_of(folder, chosen)
    layout = layout_of(chosen["where"], chosen["threads"])
    run = setup.run_file(training, layout=layout)
    train_run(run, start_gang(layout), StopRequest(Path(run.scratch)))
    metrics = (folder / "trajectory" / "model" / "metrics").glob("*.jsonl")
    lines = [json.loads(line) for path in metrics for line in path.read_text().splitlines()]
    found: dict[str, Any] = {
        "digest": hashlib.sha256(setup.weights("model")).hexdigest()[:16],
        "peak_mb": peak_mb(),
        "seconds": [line["timing"]["step_s"] for line in lines],
    }
    if made:
        [tier] = made
        files = (tier.weight_file, tier.gradient_file, tier.moment_file)
        found |= {
            "read": sum(file.bytes_read for file in files),
            "written": sum(file.bytes_written for file in files),
            "busy_s": tier.worker.busy_s,
        }
    print(json.dumps(found), flush=True)
    os._exit(0)


def measured(chosen: dict[str, Any], limit: int | None) -> dict[str, Any]:
    group = Cgroup(limit)
    child = subprocess.run(
        [sys.executable, __file__, "--worker", json.dumps(chosen)],
        env=os.environ | {"OMP_NUM_THREADS": str(chosen["threads"])}, stdout=subprocess.PIPE, text=True,
        preexec_fn=group.enter,
    )  # fmt: skip
    peak = group.leave() / 1e6
    if child.returncode:
        raise SystemExit(f"{chosen['where']} ended with {child.returncode}")
    return json.loads(child.stdout.splitlines()[-1]) | ({"cgroup_peak_mb": round(peak, 1)} if limit else {})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=64, help=f"of {SEQUENCE} tokens, of a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on a disk with 6 GB left")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(json.loads(given.worker))
    root = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        common = {"steps": given.steps, "rows": given.rows, "threads": given.threads}
        memory = measured(common | {"where": "memory", "folder": str(root / "memory")}, None)
        limit = int(memory["peak_mb"] * 1e6 - STATES + STATES / 4) if os.access(CGROUPS, os.W_OK) else None
        disk = measured(common | {"where": "disk", "folder": str(root / "disk")}, limit)
        _, spec, how, _ = training_of(root / "plan", common)
    finally:
        shutil.rmtree(root)
    layout, pool = layout_of("disk", given.threads), Pool()
    cost = off_device(spec.model, how, layout, pool.device)
    assert isinstance(cost, TierCost)
    planned = estimate(spec, how, layout, pool, spec.model.tokens)
    compute, step = (statistics.median(one["seconds"][1:]) for one in (memory, disk))
    busy = disk["busy_s"] / given.steps
    keep(
        "tiers",
        {
            "states_gb": round(STATES / 1e9, 3),
            "in_memory_gb": round(SHARE * STATES / 1e9, 3),
            "tokens a step": given.rows * SEQUENCE,
            "same bits": memory["digest"] == disk["digest"],
            "cap_mb": limit and round(limit / 1e6, 1),
            "peak_mb": {"memory": memory["peak_mb"], "disk": disk["peak_mb"]},
            "cgroup_peak_mb": disk.get("cgroup_peak_mb"),
            "planned_memory_mb": round(planned.memory_gb * 1e3, 1),
            "step_s": {"memory": round(compute, 3), "disk": round(step, 3)},
            "reading or writing, s a step": round(busy, 3),
            "max(compute, reading or writing) / step": round(max(compute, busy) / step, 3),
            "read_gb a step": {
                "planned": round(cost.read / 1e9, 3),
                "measured": round(disk["read"] / given.steps / 1e9, 3),
            },
            "written_gb a step": {
                "planned": round(cost.written / 1e9, 3),
                "measured": round(disk["written"] / given.steps / 1e9, 3),
            },
            "goals": {"same bits": True, "max(compute, reading or writing) / step": 0.9},
        },
        is_trial=given.steps < 20,
    )


if __name__ == "__main__":
    main()
