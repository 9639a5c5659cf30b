"""What a plan says of experts on disk: bytes of each tier, what a step moves, and when that is hidden."""

import math

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.plan.estimate import estimate
from atelier.engine.plan.tiers import tier_cost
from atelier.infra.dag import Node


def tier_notes(nodes: list[Node], pool: Pool, vocab: int) -> list[str]:
    """A line for every role of these nodes' trainings whose experts are on disk."""
    notes = []
    for node in nodes if vocab else ():
        config = node.training if node.task == "train" else None
        for name, role in config.roles.items() if config else ():
            layout = Parallel.model_validate(node.layout).of_role(name, is_student=bool(role.teacher))
            tier = tier_cost(role.model, config.train, layout, pool.device.disk_gbps) if config else None
            if tier is None or config is None or name in config.finished:
                continue
            seconds = estimate(role, config.train, layout, pool, vocab).seconds
            compute_s = seconds.total - seconds.disk
            said = (
                f"{node.name}: experts of {name} on disk, {_gb(tier.disk)} a rank, {_gb(tier.host)} of it in "
                f"memory; a step reads {_gb(tier.read)} and writes {_gb(tier.written)}, "
                f"{tier.seconds:.2g} s at {pool.device.disk_gbps:g} GB/s, and computes {compute_s:.2g} s"
            )
            if tier.seconds > compute_s:
                more = math.ceil(tier.seconds / compute_s)
                said += (
                    f": the disk sets the pace; train.global_batch={config.train.global_batch * more} in as "
                    "many micro-batches, or more parallel.tiers.host_gb, would hide it"
                )
            notes.append(said)
    return notes


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
