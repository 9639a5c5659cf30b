"""Find the micro-batches of a layout; check pipelines, encoders, embeddings split by columns, and phases.
Torch-free.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

from atelier.engine.config.divisors import divisors, largest_divisor
from atelier.engine.config.document import MOST_BYTES
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Axes, InferenceLayout, Parallel
from atelier.engine.config.registry import ModelSpec, ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train

PART_BYTES, FILE_BYTES = 45, 110  # in a manifest, at least: of a part of a tensor, of a rank's file
FEW_PARTS = 64  # of each tensor: a manifest of fewer is small


def micro_batches(layout: Parallel, global_batch: int) -> list[int]:
    """The possible micro-batch sizes: divisors of a rank's sequences that students' ranks can split and that
    give enough micro-batches for the pipeline schedule.
    """
    each, rows = global_batch // layout.axes.data, shared_rows(layout)
    sizes = [size for size in divisors(each, each) if size % rows == 0]
    if layout.pipeline == 1:
        return sizes
    unit = 1 if layout.schedule == "1f1b" else layout.pipeline
    return [size for size in sizes if each // size >= layout.pipeline and each // size % unit == 0]


def padded(layout: Parallel, train: Train, *, together: int = 1) -> Train:
    """The training with the rows and tokens that the ranks compute for labelled examples: those of the batch,
    and padding where the layout does not divide them. `together` as in `padded_rows`.
    """
    unit = layout.axes.row_unit
    sizes = {
        "global_batch": padded_rows(layout, train, together=together),
        "sequence": -(-train.sequence // unit) * unit,
    }
    return train.model_copy(update=sizes)


def padded_rows(layout: Parallel, train: Train, *, together: int = 1) -> int:
    """The rows that the ranks compute for a batch: its sequences, then rows of padding until every
    data-parallel rank has equally many whole micro-batches, and enough for the pipeline schedule. `together`:
    number of which an automatic micro-batch is a multiple.
    """
    size = math.lcm(shared_rows(layout), together) if train.micro_batch == "auto" else train.micro_batch
    count = max(layout.pipeline, -(-train.global_batch // (layout.axes.data * size)))
    unit = 1 if layout.schedule == "1f1b" else layout.pipeline
    return -(-count // unit) * unit * size * layout.axes.data


def ramp_shares(layout: Parallel, train: Train) -> tuple[float, float]:
    """A training's samples, and rows computed (`padded_rows`), as shares of a full batch in every step; 1, 1
    without a ramp.
    """
    ramp, full = train.progressive.rampup, train.num_steps * train.global_batch
    if not ramp.is_on:
        return 1.0, 1.0
    samples = train.progressive.samples_before(train.num_steps, train.global_batch)
    padding = 0
    for (first, _, size), (after, _, _) in pairwise(ramp.sizes(train.global_batch)):
        rows = padded_rows(layout, train.model_copy(update={"global_batch": size}))
        padding += (rows - size) * max(0, min(after, train.num_steps) - first)
    return samples / full, (samples + padding) / full


def shared_rows(layout: Parallel) -> int:
    """The number of which a micro-batch's rows must be a multiple, so that students' ranks can split them."""
    return math.lcm(1, *(max(1, other.data // layout.axes.data) for other in layout.roles.values()))


def check_schedule(layout: Parallel, roles: Mapping[str, Role], prefix: str) -> None:
    """Raise ConfigError if a role's model does not support the pipeline schedule. `prefix` as in
    `check_layout`.
    """
    for name, role in roles.items():
        if layout.pipeline > 1 and layout.schedule in type(role.model).refused_schedules:
            field = f"{prefix}{name}.model" if prefix else "model"
            raise ConfigError(
                "parallel.schedule",
                f"{layout.schedule}, but {field} of kind {role.model.kind} does not support it",
                "schedule=interleaved or 1f1b",
            )


def check_encoders(roles: Mapping[str, Role], rows: Iterable[ObjectiveSpec], prefix: str = "roles.") -> None:
    """Raise ConfigError if a role's model has an encoder but no rows have an input for it. `rows`: the
    objectives that define them; `prefix` as in `check_layout`.
    """
    if any(spec.encoder_length for spec in rows):
        return
    for name, role in roles.items():
        if role.model.reads_encoder:
            raise ConfigError(
                f"{prefix}{name}.objective" if prefix else "objective",
                f"its rows have no input for the encoder of kind {role.model.kind}",
                "objective=spans (with tokenizer=bpe4k_spans) or objective=prefix",
            )


def check_limits(
    spec: ModelSpec, sizes: Mapping[str, int], *, place: str = "parallel", model: str = "model"
) -> None:
    """Raise ConfigError for sizes of axes that do not divide what a model has, or that it does not support.
    `place` and `model` name them in messages.
    """
    for limit in spec.limits():
        size = sizes[limit.axis]
        where = f"{model}.{limit.field} {limit.number}"
        if limit.field == "kind" and size > 1:
            axis = "pipeline" if limit.axis == "stage" else limit.axis
            raise ConfigError(
                f"{place}.{axis}",
                f"{size}, but {model} of kind {spec.kind} does not support this split",
                f"{axis}=1; docs/extend/adding-a-model.md explains how to support it",
            )
        if limit.axis == "stage" and size > limit.number:
            raise ConfigError(
                f"{place}.pipeline",
                f"{size} stages are more than {where}",
                f"pipeline={limit.number} would fit",
            )
        if limit.axis != "stage" and limit.number % size:
            raise ConfigError(
                f"{place}.{limit.axis}",
                f"{size} does not divide {where}",
                f"{limit.axis}={largest_divisor(limit.number, size)} would fit",
            )


def check_manifest(role: Role, axes: Axes, *, place: str, model: str) -> None:
    """Raise ConfigError where a checkpoint's manifest, which lists the parts of all tensors, is surely larger
    than what is read back; its first save checks the exact size.
    """
    spec, shared = role.model, axes.data // axes.replicate * axes.context
    if shared * axes.tensor < FEW_PARTS or role.trainable.kind != "full":
        return
    shapes = (spec if spec.vocab != "auto" else spec.resolved(1)).shapes().values()
    moments = 3 if role.optim.kind == "adamw" else 2  # tensors of a weight

    def manifest(shared: int) -> int:
        parts = sum(min(shared, shape[0]) * (axes.tensor if len(shape) > 1 else 1) for shape in shapes)
        return moments * PART_BYTES * parts + FILE_BYTES * shared * axes.tensor

    if (size := manifest(shared)) <= MOST_BYTES:
        return
    fewer = next((n for n in divisors(axes.shard, axes.shard) if manifest(shared // n) <= MOST_BYTES), None)
    way_out = "fewer ranks, or more pipeline stages"
    if fewer is not None:
        way_out = f"replicate={axes.replicate * fewer} shard={axes.shard // fewer} for the same ranks"
    raise ConfigError(
        f"{place}.shard",
        f"{shared * axes.tensor} ranks share each weight of {model}: the manifest of a checkpoint would have"
        f" about {size / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} MB are read",
        way_out,
    )


def check_inference(layout: InferenceLayout, spec: ModelSpec, *, place: str, model: str = "model") -> None:
    """Raise ConfigError for a layout over which a model cannot be asked. `place`, `model` as above."""
    sizes = {"tensor": layout.tensor, "expert": layout.expert, "context": 1, "stage": layout.pipeline}
    check_limits(spec, sizes, place=place, model=model)
    if layout.expert > 1 and not any(limit.axis == "expert" for limit in spec.limits()):
        ranks = layout.shard * layout.expert
        raise ConfigError(
            f"{place}.expert",
            f"{layout.expert}, but {model} has no experts",
            f"shard={ranks} uses the same ranks",
        )


def has_own_head(spec: ModelSpec) -> bool:
    """Whether a model's head is separate from its embedding. A shared embedding is needed whole."""
    return not getattr(spec, "tied", True)


def check_embedding(layout: Parallel, roles: Mapping[str, Role], prefix: str) -> None:
    """Raise ConfigError for an embedding split by columns that no role supports or that the ranks do not
    divide. `prefix` as in `check_layout`.
    """
    if layout.embedding == "gathered":
        return
    place, models = "parallel.embedding", {name: role.model for name, role in roles.items()}
    split = {name: model for name, model in models.items() if has_own_head(model)}
    if not split:
        first = next(iter(models))
        field = f"{prefix}{first}.model" if prefix else "model"
        raise ConfigError(
            place,
            f"columns does not work: the head of {field} shares the embedding and needs whole rows",
            f"{field}.tied=false" if hasattr(models[first], "tied") else "embedding=gathered",
        )
    for name, model in split.items():
        axes = layout.axes_of(name)
        ranks = axes.shard * axes.expert * axes.context
        if axes.tensor > 1 and ranks > 1:
            raise ConfigError(
                place,
                f"columns, but tensor={axes.tensor} splits the embedding by rows",
                "tensor=1, or embedding=gathered",
            )
        if model.hidden % ranks:
            field = f"{prefix}{name}.model" if prefix else "model"
            raise ConfigError(
                place,
                f"columns: {ranks} ranks (shard, expert and context) do not divide {field}.hidden"
                f" {model.hidden}",
                f"{largest_divisor(model.hidden, ranks)} ranks would fit",
            )


def check_length(layout: Parallel, name: str, what: str, sequence: int) -> None:
    axes = layout.axes_of(name)
    parts = 2 * axes.context if axes.context > 1 else 1
    if layout.sequence_parallel and axes.tensor > 1:
        parts = axes.context * max(2 if axes.context > 1 else 1, axes.tensor)
    if sequence % parts or (sequence // axes.context) % (axes.tensor if layout.sequence_parallel else 1):
        raise ConfigError(
            f"{place_of(layout, name)}.context" if axes.context > 1 else f"{place_of(layout, name)}.tensor",
            f"context {axes.context} and tensor {axes.tensor} need a multiple of {parts}; {what} is"
            f" {sequence}",
            f"{what}={-(-sequence // parts) * parts} would fit",
        )


def place_of(layout: Parallel, name: str) -> str:
    return f"parallel.roles.{name}" if name in layout.roles else "parallel"
