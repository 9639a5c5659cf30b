"""Check that a training fits its layout and the memory of the pool's devices; list possible layouts."""

from collections.abc import Sequence

from atelier.engine.config.base import JsonObject, Spec
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.document import whole_of
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.pool import Pool
from atelier.engine.config.sections import frozen_limit, is_here
from atelier.engine.io.machine import memory_gb
from atelier.engine.plan.checks import check_layout
from atelier.engine.plan.search import LayoutOption, RejectedLayout, mesh, search
from atelier.infra.dag import Node
from atelier.infra.launch.slots import num_slots
from atelier.infra.store.store import Store
from atelier.tasks.finetune import check_sizes

TRAINED = ("train", "finetune")
MOST_DEVICES = 8192  # upper bound of the search for a layout that fits


def known_vocab(node: Node, store: Store) -> int:
    """The size of the node's tokenizer, if that is finished; otherwise 0."""
    record = store.find(*node.inputs["tokenizer"]) if "tokenizer" in node.inputs else None
    return whole_of(record.summary.get("vocab")) if record is not None else 0


def check_vocabulary(node: Node, document: JsonObject, arguments: Spec, vocab: int) -> None:
    """Raises ConfigError if the layout does not divide the vocabulary. Checked here because the size is a
    setting of the tokenizer task, which the training task does not know.
    """
    tokenizer = getattr(arguments, "tokenizer", None)
    if node.task not in TRAINED or not vocab or (isinstance(tokenizer, Tokenizer) and tokenizer.load):
        return
    config, layout = node.training, Parallel.model_validate(node.layout)
    sized = {
        name: role.model_copy(update={"model": role.model.resolved(vocab)})
        for name, role in config.roles.items()
    }
    if node.task == "finetune":
        check_sizes(layout, sized, config.train)
        return
    prefix = "roles." if "roles" in document else "" if config.section == "train" else f"{config.section}."
    check_layout(layout, sized, config.train, prefix=prefix, section=config.section)


def too_much(node: Node, each: Sequence[float], pool: Pool, vocab: int) -> str | None:
    """The reason why a node does not fit, with numbers and the nearest layout that does; None if it fits.
    `each`: GB of each artifact to make. Roles that train together share the devices.
    """
    if node.task == "write":
        return _too_much_to_write(node, max(each, default=0.0), pool)
    if node.task not in TRAINED or not vocab:
        return None
    layout = Parallel.model_validate(node.layout)
    needed = sum(each) if node.task == "train" else max(each, default=0.0)  # draws run one after another
    needed += sum(_resident_gb(node, name, layout, vocab) for name in node.training.frozen)
    limit = limit_gb(pool, layout.ranks)
    if needed <= limit:
        return None
    holder = "this machine, for each," if pool.is_cpu else f"a device ({pool.gpu})"
    near = _nearest(node, pool, layout, vocab)
    way_out = f"{near} would fit" if near else "a smaller model, or more devices"
    ranks = f"{layout.ranks} rank{'s' * (layout.ranks > 1)}"
    return f"{node.name}: needs {needed:.1f} GB on each of {ranks}, but {holder} has {limit:.1f}; {way_out}"


def _too_much_to_write(node: Node, needed: float, pool: Pool) -> str | None:
    limit = limit_gb(pool, node.ranks)
    if needed <= limit:
        return None
    holder = "this machine" if pool.is_cpu else f"a device ({pool.gpu})"
    holder += f", for each of {node.ranks} ranks," if node.ranks > 1 else ""
    return (
        f"{node.name}: needs {needed:.1f} GB for the model that writes, in float32, but {holder} has "
        f"{limit:.1f}; split it (data.written.tensor), let a smaller model write (data.written.by), or fewer"
        " tokens (data.written.tokens)"
    )


def _resident_gb(node: Node, name: str, layout: Parallel, vocab: int) -> float:
    """Weights of a finished teacher on one rank."""
    params = node.training.roles[name].model.resolved(vocab).num_params()
    share = (
        layout.axes.shard * layout.axes.expert * layout.axes.tensor * layout.axes.context * layout.pipeline
    )
    whole = 4 * params / 1e9
    limit = frozen_limit(layout)
    return min(whole, limit.gb) if limit else whole / share


def limit_gb(pool: Pool, ranks: int) -> float:
    """Memory of one rank in GB: its device's, or its share of the host's."""
    if not pool.is_cpu:
        return pool.device.memory_gb
    host = pool.memory_gb if pool.memory_gb != "auto" else memory_gb()
    return host / ranks


def _nearest(node: Node, pool: Pool, layout: Parallel, vocab: int) -> str:
    """The fastest layout with the fewest devices that fits, as overrides."""
    if pool.is_cpu:
        return ""
    devices = pool.gpus or layout.ranks
    while devices <= MOST_DEVICES:
        found, _ = _searched(node, pool, devices, layout, vocab)
        if found:
            beside = f" with {devices} devices" if devices != layout.ranks else ""
            return f"{words(found[0], node)}{beside} ({found[0].estimate.memory_gb:.0f} GB)"
        if pool.gpus:
            return ""
        devices *= 2
    return ""


def layouts(node: Node, pool: Pool, vocab: int) -> tuple[list[LayoutOption], list[RejectedLayout]]:
    """The possible layouts of a node's largest role on the pool's devices, the fastest first; and the
    rejected layouts with reasons.
    """
    layout = Parallel.model_validate(node.layout)
    return _searched(node, pool, pool.gpus or num_slots(pool), layout, vocab)


def _searched(
    node: Node, pool: Pool, devices: int, layout: Parallel, vocab: int
) -> tuple[list[LayoutOption], list[RejectedLayout]]:
    config = node.training
    moving = [role for name, role in config.roles.items() if role.moves and is_here(config.train, name)]
    roles = [role.model_copy(update={"model": role.model.resolved(vocab)}) for role in moving]
    largest = max(roles, key=lambda role: role.model.flops_per_token(config.train.sequence))
    limited = pool.model_copy(update={"memory_gb": limit_gb(pool, devices)})
    pads = node.task == "finetune"
    return search(largest, config.train, limited, devices, vocab=vocab, like=layout, pads=pads)


def words(option: LayoutOption, node: Node) -> str:
    """A layout of a node as overrides for the command line. Fine-tuning chooses its own micro-batch."""
    parallel = option.parallel
    found = [f"parallel.{word}" for word in mesh(parallel).split()]
    if "shard" not in mesh(parallel):
        found.append("parallel.shard=1")
    if parallel.pipeline > 1:
        found.append(f"parallel.schedule={parallel.schedule}")
    if parallel.schedule != "1f1b":
        found.append(f"parallel.interleave={parallel.interleave}")
    found.append(f"parallel.recompute={parallel.recompute}")
    if node.task != "finetune":
        found.append(f"train.micro_batch={option.micro_batch}")
    return " ".join(found)
