"""What a plan says of experts on disk: bytes of each tier, what a step moves, and when that is hidden."""

from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role, without_pipeline
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import estimate
from atelier.engine.plan.step_time import micro_batch
from atelier.engine.plan.tiers import tier_cost
from atelier.flows.run.memory_fit import limit_gb
from atelier.infra.dag import Node

MOST_DOUBLINGS = 12  # of a batch that are tried


def tier_notes(nodes: list[Node], pool: Pool, vocab: int) -> list[str]:
    """A line for every role of these nodes' trainings whose experts are on disk."""
    notes = []
    for node in nodes if vocab else ():
        config = node.training if node.task == "train" else None
        aside = without_pipeline(config.roles) if config else set()
        for name, role in config.roles.items() if config else ():
            layout = Parallel.model_validate(node.layout).of_role(name, is_student=name in aside)
            tier = tier_cost(role.model, config.train, layout, pool.device.disk_gbps) if config else None
            if tier is None or config is None or name in config.frozen:
                continue
            seconds = estimate(role, config.train, layout, pool, vocab).seconds
            compute_s = seconds.total - seconds.disk
            said = (
                f"{node.name}: experts of {name} on disk, {_gb(tier.disk)} a rank, {_gb(tier.host)} of it in "
                f"memory; a step reads {_gb(tier.read)} and writes {_gb(tier.written)}, "
                f"{tier.seconds:.2g} s at {pool.device.disk_gbps:g} GB/s, and computes {compute_s:.2g} s"
            )
            if tier.exposed(compute_s):
                said += f": the disk sets the pace; {_hidden_from(role, config.train, layout, pool, vocab)}"
            notes.append(said)
    return notes


def _hidden_from(role: Role, train: Train, layout: Parallel, pool: Pool, vocab: int) -> str:
    """The smallest multiple of the batch, in as many micro-batches, that computes as long as the disk takes,
    if it fits into memory.
    """
    rows = micro_batch(train, layout)
    for doublings in range(1, MOST_DOUBLINGS):
        sizes = {"global_batch": train.global_batch << doublings, "micro_batch": rows << doublings}
        larger = train.model_copy(update=sizes)
        found = estimate(role, larger, layout, pool, vocab)
        if found.memory_gb > limit_gb(pool, layout.ranks):
            break
        if not found.seconds.disk:
            words = " ".join(f"train.{key}={value}" for key, value in sizes.items())
            return f"{words} would hide it, or more parallel.tiers.host_gb"
    return "no batch that fits hides it; more parallel.tiers.host_gb or a faster disk would"


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"
