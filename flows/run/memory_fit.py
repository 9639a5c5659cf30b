"""Check that a training or an inference task fits its layout and the memory of the pool's devices; list
possible layouts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from atelier.engine.config.base import Json, JsonObject, Spec, parse
from atelier.engine.config.data import Tokenizer
from atelier.engine.config.document import number_of, section_of, whole_of
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.evaluation_set import QUESTIONS, SHOTS
from atelier.engine.config.parallel import InferenceLayout, Parallel, inference_axes
from atelier.engine.config.pool import Pool
from atelier.engine.config.record import Record
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.sections import frozen_limit, is_here
from atelier.engine.config.task.write import WriteConfig
from atelier.engine.io.machine import memory_gb
from atelier.engine.plan.checks import check_layout
from atelier.engine.plan.inference import cost_of_writing, held_gb, seconds_of_reading
from atelier.engine.plan.layout_checks import check_inference
from atelier.engine.plan.search import LayoutOption, RejectedLayout, mesh, search
from atelier.infra.dag import Node
from atelier.infra.launch.slots import num_slots
from atelier.infra.store.existing_model import Existing, existing_in
from atelier.infra.store.store import Store
from atelier.tasks.finetune import check_sizes

TRAINED = ("train", "finetune")
QUESTION_TOKENS = 512  # of a row of an exam
TOKEN_BYTES = 4  # of a question's file; its JSON is about as much as its options read several times
SECTIONS = {"score": "score", "examine": "examine", "imitate": "imitate", "write": "data.written"}
MOST_RANKS = 4096  # of a proposed split
MOST_DEVICES = 8192  # upper bound of the search for a layout that fits


def known_vocab(node: Node, store: Store) -> int:
    """The size of the node's tokenizer, if that is finished; otherwise 0."""
    record = store.find(*node.inputs["tokenizer"]) if "tokenizer" in node.inputs else None
    return whole_of(record.summary.get("vocab")) if record is not None else 0


def vocab_of_model(one: Existing, store: Store) -> int:
    """The vocabulary of a finished model; 0 = not known."""
    record = store.find(one.tokenizer.kind, one.tokenizer.fingerprint)
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


class InferencePlan(NamedTuple):
    """Refusals of an inference task, the memory of one rank in GB, and seconds; 0 = not known."""

    refusals: list[str] = []
    memory_gb: float = 0.0
    seconds: float = 0.0


def inference_plan(node: Node, nodes: Sequence[Node], store: Store, pool: Pool, vocab: int) -> InferencePlan:
    """Check and price the layout of a task that scores, examines or continues models; empty for other tasks.
    Models of unknown size are left out.
    """
    if node.task not in SECTIONS:
        return InferencePlan()
    layout = Parallel.model_validate(node.layout)
    axes, place = inference_axes(layout), SECTIONS[node.task]
    settings = section_of(node.config.get(node.task, node.config))
    half, limited = settings.get("precision") == "bf16", number_of(settings.get("memory_gb"))
    width, precision = (2, "bf16") if half else (4, "fp32")
    refusals: list[str] = []
    if limited and layout.ranks > 1:
        way_out = f"leave it out, or use one rank instead of {layout.ranks}"
        refusals.append(f"{place}.memory_gb: is for a model on one rank; {way_out}")
    held: dict[str, float] = {}  # GB by model
    seconds, specs = 0.0, dict(_models(node, nodes, store, vocab))
    for name, spec in specs.items():
        try:
            check_inference(axes, spec, place=place, model=name)
        except ConfigError as error:
            refusals.append(str(error))
            continue
        whole = held_gb(spec, axes, width)
        held[name] = min(whole, limited) if limited else whole
        tokens, length = _tokens(node, settings, store)
        if tokens:
            seconds += seconds_of_reading(spec, tokens, length, layout, pool, precision=precision)
        if node.task == "imitate":  # half of a paragraph is given
            half_of_it, paragraphs = whole_of(settings["tokens"]) // 2, whole_of(settings["paragraphs"])
            cost = cost_of_writing(spec, half_of_it, half_of_it, paragraphs, layout, pool)
            seconds += cost.seconds
    largest, limit = max(held, key=held.__getitem__, default=""), limit_gb(pool, layout.ranks)
    needed = held.get(largest, 0.0)
    if needed > limit and node.task != "write":  # which has a check of its own
        holder = "this machine, for each," if pool.is_cpu else f"a device ({pool.gpu})"
        ranks = f"{layout.ranks} rank{'s' * (layout.ranks > 1)}"
        refusals.append(
            f"{node.name}: needs {needed:.1f} GB for {largest} on each of {ranks}, but {holder} has"
            f" {limit:.1f}; {_way_out(specs[largest], width, limit, place)}"
        )
    return InferencePlan(refusals, needed, seconds)


def _models(node: Node, nodes: Sequence[Node], store: Store, vocab: int) -> Iterator[tuple[str, ModelSpec]]:
    """The models that an inference task reads, by name: finished ones, and those that the run trains."""
    if node.task == "write":
        yield "its model", parse(WriteConfig, node.config, node.name).model
        return
    made = {
        product.fingerprint: (each, key)
        for each in nodes
        if each.task in ("train", "finetune")
        for key, product in each.products.items()
    }
    for role, (kind, fingerprint) in node.inputs.items():
        if kind != "model":
            continue
        name = role.removeprefix("model.")
        if fingerprint in made:
            maker, key = made[fingerprint]
            if key in section_of(maker.config.get("roles")) and vocab:
                yield name, maker.training.roles[key].model.resolved(vocab)
        elif store.find(kind, fingerprint) is not None:
            with suppress(AtelierError):  # the task says what is wrong with it
                one = existing_in(store, fingerprint, node.name)
                if size := vocab_of_model(one, store) or vocab:
                    yield name, one.spec.resolved(size)


def _tokens(node: Node, settings: Mapping[str, Json], store: Store) -> tuple[int, int]:
    """Tokens to read of each model, and those of a row; 0 where they are not known."""
    if node.task == "examine":
        sets = [store.find(*one) for role, one in node.inputs.items() if role.startswith("set.")]
        return sum(_asked_tokens(one) for one in sets if one is not None), QUESTION_TOKENS
    length = settings.get("sequence")
    if not isinstance(length, int):
        return 0, 0
    return whole_of(settings.get("max_tokens")) + length * whole_of(settings.get("max_examples")), length


def _asked_tokens(made: Record) -> int:
    """About as many tokens as a model reads of an evaluation set: questions with options and examples."""
    sizes = {entry.path.rsplit("/", 1)[-1]: entry.bytes for entry in made.files}
    counts = [whole_of(made.summary.get(name)) for name in ("questions", "shots", "examples")]
    of_examples = counts[0] * counts[1] * sizes.get(SHOTS, 0) / max(1, counts[2])
    return round((sizes.get(QUESTIONS, 0) + of_examples) / TOKEN_BYTES)


def _way_out(spec: ModelSpec, width: int, limit: float, place: str) -> str:
    """The smallest split that fits, as overrides."""
    if (layout := smallest_split([spec], width, limit)) is None:
        return "a smaller model, or more devices"
    axes = {"tensor": layout.tensor, "pipeline": layout.pipeline}
    words = [f"{place}.{axis}={size}" for axis, size in axes.items() if size > 1]
    return f"{' '.join(words)} would fit ({held_gb(spec, layout, width):.0f} GB)"


def smallest_split(
    models: Sequence[ModelSpec], width: int, limit: float, *, most: int = MOST_RANKS
) -> InferenceLayout | None:
    """The fewest ranks, at most `most`, on which each of these models of weights of `width` bytes needs at
    most `limit` GB a rank, matrices split before blocks; None if there is none.
    """
    ranks = 1
    while ranks <= most:
        for tensor in (size for size in (8, 4, 2, 1) if size <= ranks):
            layout = InferenceLayout(tensor=tensor, pipeline=ranks // tensor)
            with suppress(ConfigError):
                for spec in models:
                    check_inference(layout, spec, place="")
                if all(held_gb(spec, layout, width) <= limit for spec in models):
                    return layout
        ranks *= 2
    return None
