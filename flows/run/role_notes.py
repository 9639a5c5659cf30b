"""What a plan says of single roles: of experts on disk, bytes of each tier, what a step moves, and when that
is hidden; of models that are scored in less memory than they take, what a pass reads; what a base width
scales; what keys of extensions ask for.
"""

from atelier.engine.config.base import Spec
from atelier.engine.config.data import Score
from atelier.engine.config.extensions import extension_of
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.role import Role, without_pipeline
from atelier.engine.config.sections import sections_of
from atelier.engine.config.train import Train
from atelier.engine.plan.estimate import estimate
from atelier.engine.plan.step_time import micro_batch
from atelier.engine.plan.streamed import SCORED, StreamedPass, streamed_pass
from atelier.engine.plan.tiers import tier_cost
from atelier.flows.run.auto import trained
from atelier.flows.run.memory_fit import limit_gb
from atelier.infra.code.code_map import TRAINED
from atelier.infra.dag import Node

MOST_DOUBLINGS = 12  # of a batch that are tried


def role_notes(nodes: list[Node], pool: Pool, vocab: int) -> list[str]:
    """Lines about the roles that these nodes train."""
    return _width_notes(nodes) + _tier_notes(nodes, pool, vocab) + _key_notes(nodes)


def _width_notes(nodes: list[Node]) -> list[str]:
    """A line for every role whose model has a base width (muP)."""
    notes = []
    for node in nodes:
        for name, role in node.training.roles.items() if node.task == "train" else ():
            model = role.model
            if isinstance(model, GPT) and model.base_width and role.moves:
                ratio, by_muon = model.width_ratio, role.optim.kind == "muon"
                rates = "lr is the same" if by_muon else f"lr times {1 / ratio:.3g}"
                notes.append(
                    f"{node.name}: {name} is {ratio:.3g} times as wide as model.base_width "
                    f"{model.base_width}: of matrices in blocks {rates}, init_std times {ratio**-0.5:.3g}; "
                    f"logits times {model.logit_scale:.3g}"
                )
    return notes


def _key_notes(nodes: list[Node]) -> list[str]:
    """A line for every training that uses a key of an extension which has something to say of it."""
    notes = []
    for node in nodes:
        train = node.training.train if node.task in TRAINED else None
        rows = node.training.num_labels if node.task == "finetune" else 0
        for key, asked in sections_of(train).items() if train is not None else ():
            report = extension_part(extension_of(type(asked)), "report")
            if foretold := getattr(report, "foretold", None):
                notes.append(f"{node.name}: train.{key}: {foretold(train, rows=rows)}")
    return notes


def _tier_notes(nodes: list[Node], pool: Pool, vocab: int) -> list[str]:
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


def score_notes(arguments: Spec, pool: Pool, vocab: int) -> list[str]:
    """A line for every model of the run that is scored within `score.memory_gb` and takes more."""
    score, train = getattr(arguments, "score", None), getattr(arguments, "train", None)
    if not isinstance(score, Score) or not isinstance(train, Train) or not score.memory_gb or not vocab:
        return []
    notes = []
    for name, role in trained(arguments).items():
        model = role.model if role.model.vocab != "auto" else role.model.resolved(vocab)
        passed = streamed_pass(
            model, score.memory_gb, SCORED, train.sequence, pool.device, is_cpu=pool.is_cpu
        )
        if passed is not None:
            notes.append(_read_again(name or "the model", passed, score.memory_gb))
    return notes


def _read_again(name: str, passed: StreamedPass, gb: float) -> str:
    said = f"score.memory_gb: {name} is read from its files, {_gb(passed.read)} a pass"
    if passed.num_experts:
        said += (
            f", {passed.in_memory} of {passed.num_experts} experts of {_gb(passed.expert)} in the {gb:g} GB"
        )
    said += f"; {passed.read_s:.2g} s at {passed.gbps:g} GB/s, while {passed.tokens} tokens compute "
    return said + f"{passed.compute_s:.2g} s; convert=cast halves what is read"


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
