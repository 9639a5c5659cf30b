"""A model, or one pipeline stage of it, with the objectives computed from its hidden states inside the same
module (so that sharding sees one root); and the stages of one role on this rank.

B rows, T tokens, D hidden, V vocab
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from atelier.engine.config.error import ConfigError
from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.model.auxiliary import PROJECTION
from atelier.engine.model.contract import Output, Relations
from atelier.engine.model.placement import local, settle_gradient
from atelier.engine.model.transformer import Block
from atelier.engine.objective import attention, classes, hidden
from atelier.engine.objective.chunked import UNSCORED, Mix, TeacherSide, objective_sums
from atelier.engine.objective.vocab_slice import LogitCache, VocabSlice
from atelier.engine.parallel.compute import Precision, arithmetic
from atelier.engine.parallel.context import whole_keys
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.pipeline import Pipeline, add_up_tied
from atelier.engine.parallel.shard import between_micro_batches, reshard
from atelier.engine.parallel.tensor import gathered, own_between

RIGHT = ".right"  # suffix of an objective's name: how many rows it gets right


class ForwardResult(NamedTuple):
    total: Tensor  # scalar: sum over scored tokens of the mixed objectives
    sums: dict[str, Tensor]  # scalars: plain sums by objective, always with "lm"; and how many are right
    hidden_BTD: Tensor  # detached, like everything that a student reads
    head_weight_VD: Tensor
    relations: Relations | None
    logit_cache: LogitCache | None = None


@dataclass
class StepWork:
    """The micro-batches of a step (this rank's tokens of each), the objectives, and the results."""

    batches: list[dict[str, Tensor]]
    mix: Mix
    parts: Mapping[str, int] = field(default_factory=dict)  # by objective that reads some rows only
    sides: dict[int, TeacherSide] = field(default_factory=dict)
    results: dict[int, ForwardResult] = field(default_factory=dict)
    keeps_logits: bool = False  # a student learns from the logits


class StageModule(nn.Module):
    """Computes the summed objectives inside the root's forward, the only place where a sharded head is
    gathered; a stage that is not the last returns its hidden states.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        grid: Grid,
        precision: Precision,
        is_compiled: bool = False,
        sequence_parallel: bool = False,
        is_split: bool = False,
        is_first: bool = True,
        is_last: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.is_compiled, self.grid = model, is_compiled, grid
        self.precision: Precision = precision
        self.sequence_parallel, self.is_split = sequence_parallel, is_split
        self.is_first, self.is_last = is_first, is_last

    def forward(self, x: Tensor | None, *, index: Tensor | int, work: StepWork) -> Tensor:
        self.grid.gang.heartbeat.at("forward")
        with arithmetic(self.precision, self.grid.gang.device):  # around forward only, as torch asks
            return self._forward(x, int(index), work)

    def _forward(self, x: Tensor | None, number: int, work: StepWork) -> Tensor:
        batch = own_between(work.batches[number], self.grid, sequence_parallel=self.sequence_parallel)
        model: Any = self.model
        if self.is_first and self.is_last:
            output = model(batch)
        else:  # a stage: the forward pass in pieces
            shared = model.shared(batch)
            x_BTD, relations = model.through(model.enter(batch) if self.is_first else x, shared)
            if not self.is_last:
                return x_BTD
            output = model.leave(x_BTD, shared, relations)
        hidden_BTD = gathered(output.hidden, self.grid, sequence_parallel=self.sequence_parallel)
        head_weight_VD = local(model.head_weight)
        logit_cache = LogitCache() if work.keeps_logits else None
        total, sums = objective_sums(
            hidden_BTD,
            head_weight_VD,
            batch["labels_BT"],
            {name: part for name, part in work.mix.items() if type(part[0]).compares == "logits"},
            work.sides.get(number),
            compiled=self.is_compiled,
            part=self._slice(head_weight_VD),
            is_split=self.is_split,
            rows={name: batch["parts_B"] == part for name, part in work.parts.items()},
            logit_cache=logit_cache,
        )
        for name, (spec, share) in work.mix.items():
            if type(spec).compares == "classes":
                some, sums[name], sums[name + RIGHT] = self._classify(
                    spec, hidden_BTD, batch, work.parts[name]
                )
                total = total + share * some
            elif type(spec).compares != "logits":
                some, sums[name] = self._compare(spec, hidden_BTD, output, work, number)
                total = total + share * some
        relations = None if output.relations is None else output.relations.detached()
        work.results[number] = ForwardResult(
            total, sums, hidden_BTD.detach(), head_weight_VD.detach(), relations, logit_cache
        )
        return total

    def _classify(
        self, spec: ObjectiveSpec, hidden_BTD: Tensor, batch: dict[str, Tensor], part: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Class prediction on the rows of this part: this rank's share of the sum, the sum, the rows
        right.
        """
        classes_B = batch["classes_B"].masked_fill(batch["parts_B"] != part, UNSCORED)
        if self.grid.places["context"]:  # another rank has the first tokens
            classes_B = torch.full_like(classes_B, UNSCORED)
        head_CD = local(self.model.get_submodule(f"classes.{spec.kind}").weight)
        return classes.state_sum(hidden_BTD[:, 0], head_CD, classes_B, self.grid.group("tensor"))

    def _compare(
        self, spec: ObjectiveSpec, hidden_BTD: Tensor, output: Output, work: StepWork, number: int
    ) -> tuple[Tensor, Tensor]:
        """Distillation of attention or hidden states: this rank's share of the sum, and the sum."""
        side, is_scored_BT = work.sides[number], work.batches[number]["labels_BT"] != UNSCORED
        group = self.grid.group("tensor")
        if isinstance(spec, Hidden):
            projection_DC = local(self.model.get_submodule(PROJECTION).weight)
            return hidden.state_sum(spec, hidden_BTD, projection_DC, side.hidden_BTD, is_scored_BT, group)
        if (
            not isinstance(spec, Attention)
            or output.mask is None
            or not output.relations
            or not side.relations
        ):
            raise ConfigError(
                "objective",
                "one of the two models shows no attention",
                "objective=distill needs logits alone",
            )
        mine, theirs = whole_keys(output.relations, self.grid), whole_keys(side.relations, self.grid)
        return attention.state_sum(spec, mine, theirs, output.mask, is_scored_BT, group)

    def _slice(self, head_weight_VD: Tensor) -> VocabSlice | None:
        group = self.grid.group("tensor")
        if group is None:
            return None
        size = head_weight_VD.shape[0]
        return VocabSlice(group, self.grid.places["tensor"] * size, size)


After = Callable[[int, Tensor], Any]


class RoleModel:
    """The stages of one role on this rank, trained and run as one. `tied`: children of the model whose
    weights the first and the last stage both have.
    """

    def __init__(
        self,
        stages: list[StageModule],
        numbers: list[int],
        *,
        grid: Grid,
        layout: Parallel,
        hidden: int,
        dtype: torch.dtype,
        tied: set[str],
    ) -> None:
        self.stages, self.grid, self.layout, self.hidden, self.tied = stages, grid, layout, hidden, tied
        self.pipeline = None
        if grid.pipeline > 1 and not grid.last_only:
            self.pipeline = Pipeline(stages, numbers, grid=grid, layout=layout, dtype=dtype)

    @property
    def is_compiled(self) -> bool:
        return any(stage.is_compiled for stage in self.stages)

    def parameters(self) -> dict[str, nn.Parameter]:
        """This rank's weights, by their names in the plain model."""
        return {
            name.removeprefix("model."): weight
            for stage in self.stages
            for name, weight in stage.named_parameters()
        }

    def is_counted(self, name: str) -> bool:
        """False for the last stage's copy of a weight that the first stage has too."""
        return self.pipeline is None or self.grid.is_first or name.split(".")[0] not in self.tied

    def train(self, work: StepWork, after: After) -> None:
        """Forward and backward of all micro-batches. On the ranks that have outputs, `after(index, total)` is
        called in between and returns the tensor from which the backward pass starts.
        """
        if self.pipeline is None:
            for index in range(len(work.batches)):
                self.train_one(index, work, after)
        else:
            self.pipeline.train(work, num_micro=len(work.batches), shape=self._shape(work), after=after)

    def settle_gradients(self) -> None:
        """After the last micro-batch: give gradients their weights' placements and sum tied ones."""
        for weight in self.parameters().values():
            settle_gradient(weight)
        if self.pipeline is not None:
            found = {name: local(weight.grad) for name, weight in self.parameters().items()}
            add_up_tied({name: g for name, g in found.items() if g is not None}, self.tied, self.grid)

    def train_one(self, index: int, work: StepWork, after: After) -> None:
        """Forward and backward of one micro-batch of a role without a pipeline."""
        (stage,) = self.stages
        if self.layout.zero == 1:
            between_micro_batches(stage, is_last=index == len(work.batches) - 1)
        after(index, stage(None, index=index, work=work)).backward()

    def infer(self, work: StepWork, after: After) -> None:
        """Forward of all micro-batches."""
        if self.pipeline is None:
            for index in range(len(work.batches)):
                after(index, self.stages[0](None, index=index, work=work))
            return
        self.pipeline.infer(work, num_micro=len(work.batches), shape=self._shape(work), after=after)

    def _shape(self, work: StepWork) -> tuple[int, ...]:
        rows, tokens = work.batches[0]["tokens_BT"].shape
        if self.grid.axes.tensor > 1 and self.layout.sequence_parallel:
            tokens //= self.grid.axes.tensor
        return rows, tokens, self.hidden

    def set_training(self, is_training: bool) -> None:
        for stage in self.stages:
            stage.train(is_training)

    def scale_dropout(self, share: float) -> None:
        """Multiply dropout by `share` from now on."""
        for stage in self.stages:
            for module in stage.modules():
                if isinstance(module, Block):
                    module.dropout = module.most_dropout * share

    def reshard(self) -> None:
        for stage in self.stages:
            reshard(stage)
