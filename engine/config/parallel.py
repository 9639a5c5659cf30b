"""The layout of a gang: mesh axes, micro-batch, threads, compile, device. It may change bits but not meaning,
and is never part of identity.

The axes' product is the number of ranks. replicate x shard x expert split the samples, context a row's
tokens, pipeline the blocks, tensor the matrices, and expert also a mixture's experts.
"""

from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from atelier.engine.config.base import Count, Spec, parse
from atelier.engine.config.divisors import largest_divisor
from atelier.engine.config.error import ConfigError
from atelier.engine.config.sections import with_sections

LANES = 16  # numbers per CPU update; other matrix sizes may give other bits
Recompute = Literal["none", "selective", "full"]

ExpertProducts = Literal["auto", "loop", "grouped"]
LAYOUT: dict[str, Any] = {"layout": True}


class Axes(Spec):
    """The mesh axes of one role within a pipeline stage. Each defaults to 1."""

    replicate: int = Field(default=1, ge=1, description="axis: copies of the (sharded) model")
    shard: int = Field(
        default=1, ge=1, description="axis: ranks that split weights, gradients and optimiser states"
    )
    expert: int = Field(default=1, ge=1, description="axis: ranks that split a layer's experts")
    context: int = Field(default=1, ge=1, description="axis: ranks that split a row's tokens")
    tensor: int = Field(default=1, ge=1, description="axis: ranks that split every matrix")

    @property
    def ranks(self) -> int:
        """Ranks of one stage."""
        return self.data * self.context * self.tensor

    @property
    def data(self) -> int:
        """Data-parallel size: ranks or groups of ranks with their own samples."""
        return self.replicate * self.shard * self.expert

    @property
    def row_unit(self) -> int:
        """The tokens of a row must be a multiple of this number."""
        return self.tensor * (2 * self.context if self.context > 1 else 1)


class LaterAxes(Axes):
    """The axes of a training from a step on."""

    pipeline: int = Field(default=1, ge=1, description="axis: ranks that split the blocks")


@lru_cache(1 << 10)  # a plan asks for the same ones many times
def _axes(replicate: int, shard: int, expert: int, context: int, tensor: int) -> Axes:
    return Axes(replicate=replicate, shard=shard, expert=expert, context=context, tensor=tensor)


@with_sections("parallel")
class Parallel(Spec):
    replicate: int = Field(default=1, ge=1, description="axis: copies of the (sharded) model")
    shard: Count | Literal["auto"] = Field(
        default="auto",
        description="axis: ranks that split weights, gradients and optimiser states; auto = the pool's slots",
    )
    expert: int = Field(default=1, ge=1, description="axis: ranks that split a layer's experts")
    context: int = Field(default=1, ge=1, description="axis: ranks that split a row's tokens")
    tensor: int = Field(default=1, ge=1, description="axis: ranks that split every matrix")
    pipeline: int = Field(default=1, ge=1, description="axis: ranks that split the blocks")
    zero: Literal[1, 2, 3] = Field(
        default=3,
        description="3 = gather weights again for the backward pass; 2 = keep them between; 1 = keep whole"
        " weights and gradients over all micro-batches of a step",
    )
    sequence_parallel: bool = Field(
        default=True, description="with tensor > 1: split activations between the matrices by tokens"
    )
    schedule: Literal["1f1b", "interleaved", "zb"] = Field(
        default="1f1b",
        description="pipeline schedule: 1f1b = one forward, one backward; interleaved = several stages per"
        " rank; zb = zero bubble: interleaved, weights' gradients fill the gaps",
    )
    interleave: int = Field(default=2, ge=2, description="stages per rank, for schedule=interleaved and zb")
    stages: tuple[Count, ...] = Field(
        default=(), description="blocks of each stage, first to last; empty = balanced by cost"
    )
    speeds: tuple[float, ...] = Field(
        default=(), description="relative speed of each pipeline rank's device; empty = equal"
    )
    recompute: Recompute = Field(
        default="none",
        description="values that the backward pass recomputes instead of keeping: none; selective = all"
        " but results of matrix products; full = all but each block's input",
    )
    recompute_every: int = Field(default=1, ge=1, description="recompute in every n-th block")
    compile: Literal["auto", "none", "block"] = Field(
        default="auto", description="torch.compile per block; auto = if a C++ compiler is found"
    )
    threads: Count | Literal["auto"] = Field(
        default="auto", description="CPU threads per rank; auto = cores / ranks"
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto = cuda on a pool of GPUs if a GPU is there; cuda = on any pool"
    )
    deterministic: bool = Field(
        default=False,
        description="on GPUs: only kernels whose results do not depend on timing, so that equal runs have"
        " equal bits; slower. CPUs always compute so",
    )
    expert_products: ExpertProducts = Field(
        default="auto",
        description="matrix products of experts: loop = one per expert; grouped = one operation for all;"
        " auto = grouped on CPUs if faster with equal bits, and on GPUs from compute capability 9.0 in 16"
        " bits; else loop",
    )
    embedding: Literal["gathered", "columns"] = Field(
        default="gathered",
        description="input embedding: gathered like other weights; columns = each rank (of shard, expert,"
        " context) holds columns and looks them up for all; for models with a separate head",
    )
    roles: dict[str, Axes] = Field(
        default={},
        description="axes of students with their own layout on the ranks of their teacher's last stage",
    )

    later: dict[Count | Annotated[float, Field(gt=0, lt=1)], LaterAxes] = Field(
        default={},
        description="other axes from a step of a training on, {120: {expert: 4}}, or from a share of its"
        " steps on, {0.5: {expert: 4}}; axes that are left out are 1. The gang stops there with a"
        " checkpoint, and another one of that many ranks goes on",
    )

    def with_steps(self, steps: int) -> "Parallel":
        """The layout with shares of a training's steps as numbers of steps. Raises ConfigError for a step
        with two layouts, or after the training's end.
        """
        later: dict[float, LaterAxes] = {}
        for key, axes in self.later.items():
            step = min(steps - 1, max(1, round(key * steps))) if key < 1 else int(key)
            place = f"parallel.later.{key}"
            if step in later:
                raise ConfigError(place, f"step {step} has another layout already", "leave one out")
            if step >= steps:
                way_out = "an earlier step, or a share of the steps of each training: 0.5"
                raise ConfigError(place, f"a training ends at step {steps}", way_out)
            later[step] = axes
        return self.model_copy(update={"later": later}) if later else self

    @property
    def most_ranks(self) -> int:
        """The ranks of the largest of its layouts."""
        return max(self.at(step).ranks for step in (0, *self.later))

    def spans(self, begin: int, end: int) -> "list[tuple[int, int, Parallel]]":
        """First step, last step and layout of each span of a training from step `begin` to `end`."""
        starts = [0, *map(int, sorted(self.later)), end]
        layouts = [self.at(step) for step in starts[:-1]]
        every = zip(starts[:-1], starts[1:], layouts, strict=True)
        return [
            (max(begin, first), min(end, last), one)
            for first, last, one in every
            if begin < last and first < end
        ]

    def at(self, step: float) -> "Parallel":
        """The layout of a training's step `step`, without later ones."""
        passed = [first for first in sorted(self.later) if first <= step]
        if not passed:
            return self.model_copy(update={"later": {}})
        axes = self.later[passed[-1]].model_dump()
        whole = {"later": {}, "stages": (), "speeds": (), "roles": {}}  # those are of one mesh
        found = self.model_copy(update=axes | whole)
        if self.threads == "auto" or found.ranks <= self.ranks:
            return found
        return found.model_copy(update={"threads": max(1, self.threads * self.ranks // found.ranks)})

    def resolved(self, slots: int, cores: int) -> "Parallel":
        """The layout with all `auto` numbers resolved from the pool's slots and the host's cores."""
        shard = max(1, slots // self._given) if self.shard == "auto" else self.shard
        ranks = shard * self._given
        threads = max(1, cores // ranks) if self.threads == "auto" else self.threads
        return self.model_copy(update={"shard": shard, "threads": threads})

    @property
    def _given(self) -> int:
        """The product of all axes except shard."""
        return self.replicate * self.expert * self.context * self.tensor * self.pipeline

    @property
    def embedding_ranks(self) -> int:
        """The number of ranks that hold columns of the embedding; 1 = it is gathered."""
        axes = self.axes
        return axes.shard * axes.expert * axes.context if self.embedding == "columns" else 1

    @property
    def axes(self) -> Axes:
        """The axes of one stage. Raises ConfigError while shard is `auto`."""
        if self.shard == "auto":
            raise ConfigError("parallel.shard", "is auto", "resolve it against a pool first")
        return _axes(self.replicate, self.shard, self.expert, self.context, self.tensor)

    @property
    def ranks(self) -> int:
        return self.axes.ranks * self.pipeline

    @property
    def num_stages(self) -> int:
        """Stages of the whole pipeline; interleaving schedules have `interleave` per rank."""
        return self.pipeline * (1 if self.schedule == "1f1b" or self.pipeline == 1 else self.interleave)

    def of_role(self, name: str, *, is_student: bool) -> "Parallel":
        """The layout of one role. Students use only the last stage's ranks, where their teacher's outputs
        are.
        """
        if not is_student or self.pipeline == 1:
            return self
        axes = self.axes_of(name).model_dump()
        return self.model_copy(update=axes | {"pipeline": 1, "schedule": "1f1b", "stages": (), "speeds": ()})

    def with_stages(self, most: int) -> "Parallel":
        """The same ranks with at most `most` pipeline stages; other stages become replicas. For students
        trained without a teacher, which has more blocks.
        """
        if self.num_stages <= most:
            return self
        pipeline = largest_divisor(self.pipeline, most)
        freed = {"pipeline": pipeline, "replicate": self.replicate * (self.pipeline // pipeline)}
        return self.model_copy(update=freed | {"schedule": "1f1b", "stages": (), "speeds": ()})

    def for_world(self, world: int) -> "Parallel":
        """The layout for `world` processes. Raises ConfigError, with a fitting value, if the axes do not
        match.
        """
        shard = max(1, world // self._given) if self.shard == "auto" else self.shard
        if shard * self._given == world:
            return self.model_copy(update={"shard": shard})
        names = ("replicate", "expert", "context", "tensor", "pipeline")
        product = " x ".join(
            [f"replicate {self.replicate}", f"shard {self.shard}"]
            + [f"{name} {getattr(self, name)}" for name in names[1:] if getattr(self, name) > 1]
        )
        fits = f"shard={world // self._given}" if world % self._given == 0 else "1 for every axis but shard"
        raise ConfigError(
            "parallel",
            f"{product} = {shard * self._given}, but {world} processes were started",
            f"{fits} would fit",
        )

    def check_batch(self, global_batch: int, micro_batch: int | Literal["auto"]) -> None:
        """Raise ConfigError for a batch that the ranks cannot split evenly."""
        data = self.axes.data
        if global_batch % data:
            fits = largest_divisor(global_batch, data)
            expert = f" x expert {self.expert}" if self.expert > 1 else ""
            raise ConfigError(
                "parallel",
                f"replicate {self.replicate} x shard {self.shard}{expert} = {data} does not divide"
                f" train.global_batch {global_batch}",
                f"{fits} ranks would fit",
            )
        each = global_batch // data
        if micro_batch != "auto" and each % micro_batch:
            fits = largest_divisor(each, micro_batch)
            raise ConfigError(
                "train.micro_batch",
                f"{micro_batch} does not divide the {each} sequences of a rank",
                f"micro_batch={fits} would fit",
            )

    def axes_of(self, name: str) -> Axes:
        """The axes of a role within its stage; students may have their own."""
        return self.roles.get(name, self.axes)


class InferenceLayout(Spec):
    """The ranks over which a model is split when it is scored, examined or continued, by axes as in training.
    They change results only by the rounding of sums.
    """

    replicate: Count = Field(
        default=1, description="copies of the model, which share the work", json_schema_extra=LAYOUT
    )
    shard: Count = Field(
        default=1,
        description="ranks that share the work and the weights, which are gathered block by block",
        json_schema_extra=LAYOUT,
    )
    expert: Count = Field(
        default=1,
        description="ranks that share the work and split a layer's experts",
        json_schema_extra=LAYOUT,
    )
    tensor: Count = Field(default=1, description="ranks that split every matrix", json_schema_extra=LAYOUT)
    pipeline: Count = Field(default=1, description="ranks that split the blocks", json_schema_extra=LAYOUT)

    @property
    def axes(self) -> Axes:
        """The axes of one pipeline stage."""
        return Axes(replicate=self.replicate, shard=self.shard, expert=self.expert, tensor=self.tensor)

    @property
    def ranks(self) -> int:
        return self.axes.ranks * self.pipeline

    def parallel(self, threads: int | Literal["auto"]) -> Parallel:
        """The layout of the gang, with `threads` CPU threads in each rank."""
        return Parallel(**self.axes.model_dump(), pipeline=self.pipeline, threads=threads)


def split_of(words: str, place: str) -> Parallel:
    """The layout in words like "tensor=2,pipeline=2"; '' is one rank. Raises ConfigError at `place`."""
    parts = [part.partition("=") for part in words.split(",") if part.strip()]
    return parse(InferenceLayout, {key.strip(): size for key, _, size in parts}, place).parallel("auto")


def inference_axes(layout: Parallel) -> InferenceLayout:
    """The axes of a gang's layout, resolved."""
    return InferenceLayout(**layout.axes.model_dump(exclude={"context"}), pipeline=layout.pipeline)
