"""Plan the tasks that ask models: whether each can be split as asked and fits; memory and time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from atelier.engine.config.base import parse
from atelier.engine.config.document import number_of, section_of, whole_of
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.parallel import InferenceLayout, Parallel, inference_axes
from atelier.engine.config.pool import Pool
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.task.write import WriteConfig
from atelier.engine.plan.asked import held_gb, seconds_of_reading
from atelier.engine.plan.layout_checks import check_inference
from atelier.flows.run.memory_fit import limit_gb
from atelier.infra.dag import Node
from atelier.infra.store.existing_model import spec_of
from atelier.infra.store.store import Store

SECTIONS = {"score": "score", "examine": "examine", "imitate": "imitate", "write": "data.written"}
MOST = 13  # a proposed layout has fewer than 2^13 ranks


class AskedPlan(NamedTuple):
    """`refusals` of a node that asks models, the memory of one rank in GB, and seconds; 0 = not known."""

    refusals: list[str] = []
    memory_gb: float = 0.0
    seconds: float = 0.0


def asked_plan(node: Node, nodes: Sequence[Node], store: Store, pool: Pool, vocab: int) -> AskedPlan:
    """What a node asks of its models; nothing for other nodes and for models that are not known yet."""
    if node.task not in SECTIONS:
        return AskedPlan()
    layout = Parallel.model_validate(node.layout)
    axes, place = inference_axes(layout), SECTIONS[node.task]
    settings = section_of(node.config.get(node.task, node.config))
    half, limited = settings.get("precision") == "bf16", number_of(settings.get("memory_gb"))
    width, precision = (2, "bf16") if half else (4, "fp32")
    refusals: list[str] = []
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
        tokens, length = _tokens(settings)
        if tokens:
            seconds += seconds_of_reading(spec, tokens, length, layout, pool, precision=precision)
    largest, limit = max(held, key=held.__getitem__, default=""), limit_gb(pool, layout.ranks)
    needed = held.get(largest, 0.0)
    if needed > limit and node.task != "write":  # which has a check of its own
        holder = "this machine, for each," if pool.is_cpu else f"a device ({pool.gpu})"
        ranks = f"{layout.ranks} rank{'s' * (layout.ranks > 1)}"
        refusals.append(
            f"{node.name}: needs {needed:.1f} GB for {largest} on each of {ranks}, but {holder} has"
            f" {limit:.1f}; {_nearest(specs[largest], width, limit, place)}"
        )
    return AskedPlan(refusals, needed, seconds)


def _models(node: Node, nodes: Sequence[Node], store: Store, vocab: int) -> Iterator[tuple[str, ModelSpec]]:
    """The models that a node asks, by name: finished ones, and those of the run's trainings."""
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
            roles: Mapping[str, object] = section_of(maker.config.get("roles"))
            if key in roles and vocab:
                yield name, maker.training.roles[key].model.resolved(vocab)
        elif (record := store.find(kind, fingerprint)) is not None:
            size = whole_of(record.summary.get("vocab"))
            try:
                yield name, spec_of(record, store, name, name).resolved(size or vocab)
            except AtelierError:
                continue  # the task says what is wrong with it


def _tokens(settings: Mapping[str, object]) -> tuple[int, int]:
    """Tokens to read of each model, and those of a row; 0 where they are not known."""
    length = settings.get("sequence")
    if not isinstance(length, int):
        return 0, 0
    return whole_of(settings.get("max_tokens")) + length * whole_of(settings.get("max_examples")), length


def _nearest(spec: ModelSpec, width: int, limit: float, place: str) -> str:
    """The smallest split that fits, as overrides: matrices first, then blocks."""
    sizes = [(2**n // tensor, tensor) for n in range(1, MOST) for tensor in (8, 4, 2, 1) if tensor <= 2**n]
    for pipeline, tensor in sizes:
        layout = InferenceLayout(tensor=tensor, pipeline=pipeline)
        with suppress(ConfigError):
            check_inference(layout, spec, place=place)
            if (needed := held_gb(spec, layout, width)) <= limit:
                axes = {"tensor": tensor, "pipeline": pipeline}
                words = [f"{place}.{axis}={size}" for axis, size in axes.items() if size > 1]
                return f"{' '.join(words)} would fit ({needed:.0f} GB)"
    return "a smaller model, or more devices"
