"""Build roles from a training's description: a plain network on the meta device is transformed for its layout
in a fixed order, then each rank allocates and fills only its shard.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from atelier.engine.config.conversions import OPTIMIZER, OPTIMIZER_KIND, keeps_states
from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import OptimSpec
from atelier.engine.config.role import without_pipeline
from atelier.engine.config.run_file import Member as MemberSpec
from atelier.engine.config.run_file import Training
from atelier.engine.config.sections import extensions_of, frozen_limit, keys_with
from atelier.engine.config.train import Train
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.loop.attachments import WeightOwner
from atelier.engine.loop.decisions import HealthDetector, settled
from atelier.engine.loop.prompt_start import begun_from, prompt_ids
from atelier.engine.loop.role_state import RoleState, end_of
from atelier.engine.loop.stage import RoleModel, StageModule
from atelier.engine.loop.weights import RoleWeights, Values, fill_stages
from atelier.engine.model.auxiliary import is_auxiliary
from atelier.engine.model.contract import Model, blocks_of, stored
from atelier.engine.model.load import blank, build, first_values, move_parts, read_weights
from atelier.engine.model.lora import addition_values, is_addition
from atelier.engine.model.lora import apply as apply_lora
from atelier.engine.model.soft_prompt import TABLE, first_prompt, tune_prompt
from atelier.engine.model.weights import StoredWeights
from atelier.engine.objective.load import add_modules
from atelier.engine.parallel.compute import (
    check_precision,
    compile_blocks,
    compile_mode,
    recompute_blocks,
    sent_dtype,
    use_float8,
    weight_dtype,
)
from atelier.engine.parallel.context import gather_keys
from atelier.engine.parallel.embedding import split_embedding
from atelier.engine.parallel.expert import mixtures, split_experts
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.pipeline import keep_stage, stage_numbers, tied_names
from atelier.engine.parallel.shard import shard
from atelier.engine.parallel.tensor import split_matrices
from atelier.engine.plan.layout_checks import has_own_head, micro_batches
from atelier.engine.plan.partition import partition
from atelier.engine.plan.streamed import check_whole
from atelier.engine.tier.ring import Ring


@dataclass
class BuildContext:
    """Inputs for building a role: the gang, its layout, the model artifacts to start from, and a scratch
    folder for copies of remote files.
    """

    gang: Gang
    layout: Parallel
    inputs: Mapping[str, ArtifactInput]
    scratch: Path
    _grids: dict[str, Grid] = field(default_factory=dict)

    def grid(self, name: str, *, is_student: bool) -> Grid:
        """The grid of a role. The first call for a role's axes is a collective: all ranks must ask for the
        same roles in the same order.
        """
        axes = self.layout.axes_of(name)
        key = f"{axes} {is_student}"
        if key not in self._grids:
            last_only = is_student and self.layout.pipeline > 1
            self._grids[key] = Grid(self.gang, axes, pipeline=self.layout.pipeline, last_only=last_only)
        return self._grids[key]


def build_roles(training: Training, steps: Mapping[str, int], context: BuildContext) -> dict[str, RoleState]:
    """Build the roles that resume at one of `steps`, their teachers, and finished models that teach roles at
    other sites, by name.
    """
    taught_by = {teacher for name in steps for teacher in training.members[name].role.teachers}
    taught_by |= {
        name for name, member in training.here.items() if not member.role.moves and training.readers(name)
    }
    return {
        name: build_member(name, spec, training=training, build_context=context)
        for name, spec in training.here.items()
        if name in steps or name in taught_by
    }


def build_member(
    name: str, spec: MemberSpec, *, training: Training, build_context: BuildContext
) -> RoleState:
    """Build a role at its start step with its initial weights; without a network on ranks that hold no part
    of it.

    Raises ConfigError if its `init` is not an input or does not fit its model, or if it is frozen without
    `init`.
    """
    train = training.train
    roles = {key: member.role for key, member in training.members.items()}
    grid = build_context.grid(name, is_student=name in without_pipeline(roles))
    health = HealthDetector(train.health)
    plain, values, source = _plain(name, spec, training=training, build_context=build_context)
    bare, body = plain(), None
    if grid.is_here:
        body = _body(
            name,
            training=training,
            build_context=build_context,
            grid=grid,
            plain=plain,
            values=values,
            files=_streamed(name, bare, spec, source, train, build_context.layout),
        )
        body.set_training(spec.mode != "frozen")
    optim = None if spec.mode == "frozen" else spec.role.optim
    weights = RoleWeights(bare, body, grid, optim)
    goes_on = optim is not None and spec.init and _has_states_of(optim, spec.init, build_context)
    if goes_on:
        file = build_context.inputs[spec.init].file(OPTIMIZER, build_context.scratch)
        weights.take(StoredWeights(file), f"roles.{name}.init")
    state = RoleState(
        name,
        spec,
        grid=grid,
        body=body,
        weights=weights,
        plain=bare,
        precision=train.arithmetic,
        seed=train.seed,
        health=health,
        parts=training.parts,
        train=train,
        settled=settled(training, name),
    )
    state.begins_with_states = bool(goes_on)
    return state


def _has_states_of(optim: OptimSpec, init: str, build_context: BuildContext) -> bool:
    """Whether the model that a role starts from has states of an optimiser like the role's."""
    begun = build_context.inputs[init]
    if OPTIMIZER not in begun.names():
        return False
    return begun.json(OPTIMIZER_KIND, build_context.scratch) == keeps_states(optim.as_identity())


def _body(
    name: str,
    *,
    training: Training,
    build_context: BuildContext,
    grid: Grid,
    plain: Callable[[], Model],
    values: Values,
    files: StoredWeights | None,
) -> RoleModel:
    """The stages of a role on this rank. `files`: the files in which the weights stay, if any."""
    spec, train, layout = training.members[name], training.train, build_context.layout
    is_pipeline = grid.pipeline > 1 and not grid.last_only
    counts = _stage_blocks(name, training, layout) if is_pipeline else (spec.role.model.num_blocks,)
    bare = plain()
    mode = compile_mode(
        layout,
        flops=_flops(spec, train) / build_context.gang.world,
        device=build_context.gang.device,
        is_plain=grid.axes.context * grid.axes.tensor * len(counts) == 1
        and not keys_with(layout, "chooses_batches")
        and not mixtures(bare),
    )
    numbers = stage_numbers(grid, layout)
    stages = [
        _stage(
            plain(),
            number,
            counts,
            spec=spec,
            train=train,
            build_context=build_context,
            grid=grid,
            is_compiled=mode == "block",
            files=files,
        )
        for number in numbers
    ]
    fill_stages(stages, values, build_context.gang.device)
    dtype = weight_dtype(train.arithmetic)
    tied = tied_names(bare) if is_pipeline else set()
    return RoleModel(stages, numbers, grid=grid, layout=layout, dtype=dtype, tied=tied)


def _stage(
    model: Model,
    number: int,
    counts: tuple[int, ...],
    *,
    spec: MemberSpec,
    train: Train,
    build_context: BuildContext,
    grid: Grid,
    is_compiled: bool,
    files: StoredWeights | None,
) -> StageModule:
    """Transform a plain model on the meta device into its stage: keep the stage's modules, convert to float8,
    split matrices, split experts, take out weights, gather keys, recompute, compile, shard. The order
    matters: each step works on the result of the earlier ones.
    """
    layout = build_context.layout
    is_first, is_last, begin = number == 0, number == len(counts) - 1, sum(counts[:number])
    if len(counts) > 1:
        keep_stage(model, range(begin, begin + counts[number]), is_first=is_first, is_last=is_last)
    check_precision(train.arithmetic, build_context.gang.device)
    if train.arithmetic == "fp8":
        use_float8(model)
    split_matrices(model, grid, sequence_parallel=layout.sequence_parallel)
    split_experts(model, grid)
    for experts in mixtures(model):
        experts.products = layout.expert_products
    if layout.embedding == "columns" and files is None and has_own_head(spec.role.model):
        dtype = sent_dtype(train.arithmetic, build_context.gang.device)
        is_even = not keys_with(layout, "chooses_batches")
        split_embedding(model, grid, dtype, is_even=is_even, is_first=is_first)
    ring = _ring(model, files, grid, build_context=build_context, train=train) if files else None
    owner = _owner(model, spec, build_context)
    gather_keys(model, grid)
    blocks = blocks_of(model)
    if spec.mode != "frozen":
        recompute_blocks(blocks, layout.recompute, layout.recompute_every)
    if is_compiled and ring is None:
        compile_blocks(model.blocks)  # type: ignore[arg-type]
    stage = StageModule(
        model,
        grid=grid,
        precision=train.arithmetic,
        is_compiled=is_compiled,
        sequence_parallel=layout.sequence_parallel,
        is_split=len(counts) > 1 and layout.schedule == "zb",
        is_first=is_first,
        is_last=is_last,
        owner=owner,
        ring=ring,
    )
    if ring is None:
        shard(
            stage,
            blocks,
            grid=grid,
            zero=layout.zero,
            precision=train.arithmetic,
            is_whole=spec.mode != "frozen" and bool(keys_with(train, "takes_gradients")),
        )
    return stage


def _owner(model: Model, spec: MemberSpec, build_context: BuildContext) -> WeightOwner | None:
    """The owner of weights that an extension takes out of a stage, if any."""
    for name in sorted(extensions_of(build_context.layout)):
        part = extension_part(name, "weights", "take_weights")
        if part is not None and (owner := part.take_weights(model, spec, build_context)) is not None:
            return cast(WeightOwner, owner)
    return None


def _ring(
    model: Model, files: StoredWeights, grid: Grid, *, build_context: BuildContext, train: Train
) -> Ring:
    """Keep the weights of a frozen model in its files."""
    limit = frozen_limit(build_context.layout)
    assert limit is not None  # otherwise it has no files
    return Ring(
        model,
        files,
        int(limit.gb * 1e9),
        device=build_context.gang.device,
        dtype=weight_dtype(train.arithmetic),
        place=limit.place,
        is_mapped=False,
        rank=grid.places["expert"],
    )


def _plain(
    name: str, spec: MemberSpec, *, training: Training, build_context: BuildContext
) -> tuple[Callable[[], Model], Values, StoredWeights | None]:
    """A factory of the plain network on the meta device, a function for each weight's initial value, and the
    weights of the model that it starts from.
    """
    role, train = spec.role, training.train
    seed, seed_name = train.seed, role.seed_name or name
    source: StoredWeights | None = None
    model_spec = role.model
    if spec.init:
        if spec.init not in build_context.inputs:
            known = ", ".join(build_context.inputs) or "none"
            raise ConfigError(f"roles.{name}.init", f"no input {spec.init!r}", f"inputs: {known}")
        source, parent_spec = read_weights(build_context.inputs[spec.init], build_context.scratch)
        if spec.mode == "frozen":
            model_spec = parent_spec
        elif parent_spec.shapes() != begun_from(model_spec, role.trainable).shapes():
            raise ConfigError(
                f"roles.{name}.init",
                f"the weights of {spec.init} do not fit roles.{name}.model",
                "give it the parent's model",
            )
    elif spec.mode == "frozen":
        raise ConfigError(f"roles.{name}", "is frozen, but has no model", "give members.<name>.init")

    def plain() -> Model:
        with blank():
            model = build(model_spec).to(weight_dtype(train.arithmetic))
            if spec.mode == "frozen":
                return model.requires_grad_(False)
            move_parts(model, role.trainable)
            apply_lora(model, role.trainable, seed=seed, name=seed_name)
            tune_prompt(model, role.trainable)
            for key, objective in role.objective.items():
                if teacher := role.teacher_of(key):
                    width = training.members[teacher].role.model.hidden
                    add_modules(model, [objective], teacher_hidden=width)
        return model

    bare = plain()

    def values(weight: str, shape: torch.Size) -> Tensor:
        if is_addition(weight):
            return addition_values(weight, shape, seed=seed, name=seed_name)
        if weight == TABLE and source is not None and weight not in source:
            embed_VD = source["embed.weight"]
            ids = prompt_ids(role.trainable, build_context.inputs, build_context.scratch)
            return first_prompt(
                role.trainable, embed_VD, ids, num_ids=model_spec.ids, seed=seed, name=seed_name
            )
        if source is None or is_auxiliary(weight):
            return first_values(bare, weight, shape, seed, seed_name)
        return source[weight]

    return plain, values, source


def _streamed(
    name: str, bare: Model, spec: MemberSpec, source: StoredWeights | None, train: Train, layout: Parallel
) -> StoredWeights | None:
    """The weights of a frozen model that stay in their files because it is larger than its memory limit."""
    limit = frozen_limit(layout)
    if limit is None or spec.mode != "frozen":
        return None
    size = weight_dtype(train.arithmetic).itemsize
    check_whole(layout, name)
    return source if sum(weight.numel() for _, weight in stored(bare)) * size > int(limit.gb * 1e9) else None


def _stage_blocks(name: str, training: Training, layout: Parallel) -> tuple[int, ...]:
    """Number of blocks per stage. The last stage also computes the head and all students."""
    if layout.stages:
        return layout.stages
    sequence = training.train.sequence
    *blocks, after = training.members[name].role.model.block_flops(sequence)
    for other in training.members.values():
        if name in other.role.teachers:
            after += other.role.model.flops_per_token(sequence)
    num_stages, given = layout.num_stages, layout.speeds
    speeds = [given[stage % layout.pipeline] for stage in range(num_stages)] if given else ()
    return partition(blocks, num_stages=num_stages, speeds=speeds, after=after)


def _flops(spec: MemberSpec, train: Train) -> float:
    """FLOPs of the role's whole training; a frozen teacher has only forward passes, a third of them."""
    tokens = train.global_batch * train.sequence
    each = spec.role.model.flops_per_token(train.sequence) * tokens
    if spec.mode == "frozen":
        return each * train.num_steps / 3
    return each * (end_of(spec) - int(spec.role.start))


def auto_micro_batch(train: Train, layout: Parallel, device: torch.device, *, together: int = 1) -> int:
    """Resolve `auto`: the largest divisor of a rank's sequences that is a multiple of `together` and has at
    most 8192 tokens on a CPU, 65536 on a GPU; in a pipeline, if possible, small enough for 4 micro-batches
    per pipeline rank.
    """
    each = train.global_batch // layout.axes.data
    if train.micro_batch != "auto":
        return train.micro_batch
    room = 65536 if device.type == "cuda" else 8192
    wanted = min(each, 4 * layout.pipeline) if layout.pipeline > 1 else 1
    tokens = train.sequence // layout.axes.context
    sizes = [size for size in micro_batches(layout, train.global_batch) if size % together == 0]
    return max(
        size for size in sizes if size == sizes[0] or (size * tokens <= room and each // size >= wanted)
    )
