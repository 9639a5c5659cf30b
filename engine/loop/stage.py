"""A model or pipeline stage in one module with the objectives on its hidden states, so that sharding sees one
root; and the stages of one role on this rank.

B rows, T tokens, D hidden, V vocab
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from atelier.engine.config.batch import TENSORS
from atelier.engine.config.error import ConfigError
from atelier.engine.config.parallel import Parallel
from atelier.engine.loop.attachments import GradientHandler, WeightOwner
from atelier.engine.model.contract import Carried, Model, Output, Relations, stored
from atelier.engine.model.placement import local, settle_gradient
from atelier.engine.objective.chunked import Mix, Side
from atelier.engine.objective.terms import State, mixed_terms
from atelier.engine.objective.vocab_slice import LogitCache, VocabSlice
from atelier.engine.parallel.compute import Precision, arithmetic
from atelier.engine.parallel.context import over_context, whole_keys
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.pipeline import Pipeline, add_up_tied
from atelier.engine.parallel.shard import between_micro_batches, reshard
from atelier.engine.parallel.tensor import gathered, own_between
from atelier.engine.tier.ring import Ring

AUX = "aux/"  # prefix of sums from a model's blocks


class ForwardResult(NamedTuple):
    total: Tensor  # scalar: sum over scored tokens of the mixed objectives
    sums: dict[str, Tensor]  # scalars: plain sums by objective and of all tokens; numbers of right ones
    hidden_BTD: Tensor  # detached, like all that students read
    head_weight_VD: Tensor
    relations: Relations | None
    logit_cache: LogitCache | None = None


@dataclass
class StepWork:
    """The micro-batches of a step (this rank's tokens), the objectives, and the results."""

    batches: list[dict[str, Tensor]]
    mix: Mix
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by objective that reads only some
    sides: dict[int, Side] = field(default_factory=dict)
    others: dict[int, Mapping[str, Side]] = field(default_factory=dict)  # by objective
    results: dict[int, ForwardResult] = field(default_factory=dict)
    keeps_logits: bool = False  # whether a student learns from the logits
    text: str = "lm"  # name of the cross-entropy of all scored tokens


class StageModule(nn.Module):
    """Computes the summed objectives inside the root's forward, the only place where a sharded head is
    gathered. A stage before the last returns its hidden states.
    """

    def __init__(
        self,
        model: Model,
        *,
        grid: Grid,
        precision: Precision,
        is_compiled: bool = False,
        sequence_parallel: bool = False,
        is_split: bool = False,
        is_first: bool = True,
        is_last: bool = True,
        owner: WeightOwner | None = None,
        ring: Ring | None = None,
    ) -> None:
        super().__init__()
        self.model, self.is_compiled, self.grid, self.owner, self.ring = model, is_compiled, grid, owner, ring
        self.precision: Precision = precision
        self.sequence_parallel, self.is_split = sequence_parallel, is_split
        self.is_first, self.is_last = is_first, is_last

    def forward(self, *given: Tensor, index: Tensor | int, work: StepWork) -> Tensor | tuple[Tensor, ...]:
        """`given`: tensors from the stage before, in the order of `passed_on`."""
        gang = self.grid.gang
        gang.heartbeat.at("forward")
        with (
            gang.regions("forward"),
            arithmetic(self.precision, gang.device),
        ):  # around forward only, as torch requires
            return self._forward(given, int(index), work)

    def _forward(self, given: tuple[Tensor, ...], number: int, work: StepWork) -> Tensor | tuple[Tensor, ...]:
        batch = own_between(work.batches[number], self.grid, sequence_parallel=self.sequence_parallel)
        model = self.model
        if self.is_first and self.is_last:
            output = model(batch)
        else:  # a pipeline stage
            names = self.passed_on()
            shared = model.shared(batch)
            carried = model.begin(batch) if self.is_first else dict(zip(names, given, strict=True))
            carried, relations = model.through(carried, shared)
            if not self.is_last:
                _check_passed(carried, names, model)
                return carried[names[0]] if len(names) == 1 else tuple(carried[name] for name in names)
            output = model.leave(carried, shared, relations)
        return self._objectives(output, batch, number, work)

    def passed_on(self) -> list[str]:
        """The names of the tensors between stages, in order."""
        return [*self.model.carries(), *self.model.sums()]

    def _objectives(self, output: Output, batch: dict[str, Tensor], number: int, work: StepWork) -> Tensor:
        hidden_BTD = gathered(output.hidden, self.grid, sequence_parallel=self.sequence_parallel)
        head_weight_VD = local(self.model.head_weight)
        logit_cache = LogitCache() if work.keeps_logits else None
        state = State(
            output=output,
            hidden_BTD=hidden_BTD,
            head_weight_VD=head_weight_VD,
            batch=work.batches[number],
            weight=lambda name: output.weights[name] if name in output.weights else self._local(name),
            whole_keys=lambda relations: whole_keys(relations, self.grid),
            over_context=lambda part: over_context(part, self.grid),
            group=self.grid.group("tensor"),
            part=slice_of(self.grid, len(head_weight_VD)),
            ids=self.model.spec.ids,
            has_first=not self.grid.places["context"],
            is_compiled=self.is_compiled,
            is_split=self.is_split,
        )
        rows = {name: rows_of(batch["parts_B"], parts) for name, parts in work.parts.items()}
        total, sums = mixed_terms(
            state, work.mix, work.sides.get(number), rows, logit_cache, work.text, work.others.get(number, {})
        )
        for name, each in self.model.sums().items():
            sums[AUX + name] = output.aux[name].detach()
            if each.weight:
                total = total + each.weight * output.aux[name]
        relations = None if output.relations is None else output.relations.detached()
        work.results[number] = ForwardResult(
            total, sums, hidden_BTD.detach(), head_weight_VD.detach(), relations, logit_cache
        )
        return total

    def _local(self, name: str) -> Tensor:
        """This rank's shard of a weight."""
        return local(self.model.get_parameter(name))


def slice_of(grid: Grid, size: int) -> VocabSlice | None:
    """The `size` vocabulary rows of this rank; None if it has all."""
    group = grid.group("tensor")
    return None if group is None else VocabSlice(group, grid.places["tensor"] * size, size)


def rows_of(parts_B: Tensor, parts: Sequence[int]) -> Tensor:
    """A mask of the rows in these parts of the mixture."""
    return torch.isin(parts_B, torch.tensor(parts, device=parts_B.device))


def _meta(shape: Sequence[int], dtype: torch.dtype, *, has_gradient: bool = True) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta", requires_grad=has_gradient)


def _check_passed(carried: Carried, names: list[str], model: Model) -> None:
    missing = [name for name in names if name not in carried]
    if missing:
        raise ConfigError(
            f"model.{model.spec.kind}",
            f"its blocks do not pass on {', '.join(missing)}, which the next stage needs",
            "its `through` must return every name of `carries` and `sums`",
        )


After = Callable[[int, Tensor], Tensor]  # (micro-batch, total) -> start of its backward pass
Seen = Callable[[int, Tensor], Tensor | None]  # the same for a forward pass alone


class RoleModel:
    """The stages of one role on this rank, trained and run as one. `tied`: children of the model whose
    weights both the first and the last stage have.
    """

    def __init__(
        self,
        stages: list[StageModule],
        numbers: list[int],
        *,
        grid: Grid,
        layout: Parallel,
        dtype: torch.dtype,
        tied: set[str],
    ) -> None:
        self.stages, self.grid, self.layout, self.tied = stages, grid, layout, tied
        self.dtype = dtype  # type of hidden states between stages
        self.gradient_handler: GradientHandler | None = None  # an extension's
        self.pipeline = None
        if grid.pipeline > 1 and not grid.last_only:
            self.pipeline = Pipeline(stages, numbers, grid=grid, layout=layout)

    @property
    def is_compiled(self) -> bool:
        return any(stage.is_compiled for stage in self.stages)

    @property
    def owners(self) -> list[WeightOwner]:
        """The owners of each stage's weights that are not on the device."""
        return [stage.owner for stage in self.stages if stage.owner is not None]

    @property
    def is_streamed(self) -> bool:
        """Whether weights are read from files while they compute."""
        return any(stage.ring is not None for stage in self.stages)

    def parameters(self) -> dict[str, nn.Parameter]:
        """This rank's weights, by name in the plain model."""
        return {
            name.removeprefix("model."): weight
            for stage in self.stages
            for name, weight in stage.named_parameters()
        }

    def buffers(self) -> dict[str, Tensor]:
        """This rank's weights without gradient."""
        known = self.parameters()
        found = {
            name.removeprefix("model."): weight for stage in self.stages for name, weight in stored(stage)
        }
        return {name: weight for name, weight in found.items() if name not in known}

    def is_counted(self, name: str) -> bool:
        """Whether to count the weight: False for the last stage's copy of a first-stage weight."""
        return self.pipeline is None or self.grid.is_first or name.split(".")[0] not in self.tied

    def train(self, work: StepWork, after: After) -> None:
        """Forward and backward of all micro-batches. In between, ranks with outputs call `after(index,
        total)`, which returns the tensor from which the backward pass starts.
        """
        if self.pipeline is None:
            for index in range(len(work.batches)):
                self.train_one(index, work, after)
        else:
            self.pipeline.train(work, num_micro=len(work.batches), between=self._between(work), after=after)

    def settle_gradients(self) -> None:
        """After the last micro-batch: give gradients their weights' placements and sum tied ones."""
        if self.gradient_handler is not None:
            self.gradient_handler.finish()
        for weight in self.parameters().values():
            settle_gradient(weight)
        if self.pipeline is not None:
            found = {name: local(weight.grad) for name, weight in self.parameters().items()}
            add_up_tied({name: g for name, g in found.items() if g is not None}, self.tied, self.grid)

    def train_one(self, index: int, work: StepWork, after: After) -> None:
        """Forward and backward of one micro-batch of a role without pipeline."""
        (stage,) = self.stages
        if self.layout.zero == 1:
            between_micro_batches(stage, is_last=index == len(work.batches) - 1)
        total = after(index, stage(index=index, work=work))
        with self.grid.gang.regions("backward"):
            total.backward()
        if self.gradient_handler is not None:
            self.gradient_handler.add()

    def infer(self, work: StepWork, after: Seen) -> None:
        """Forward of all micro-batches."""
        if self.pipeline is None:
            for index in range(len(work.batches)):
                self.infer_one(index, work, after)
            return
        self.pipeline.infer(work, num_micro=len(work.batches), between=self._between(work), after=after)

    def infer_one(self, index: int, work: StepWork, after: Seen) -> None:
        """Forward of one micro-batch of a role without pipeline; sharded weights stay gathered in `after`."""
        (stage,) = self.stages
        after(index, stage(index=index, work=work))

    def _between(self, work: StepWork) -> tuple[Tensor, ...]:
        """The tensors between two stages, as meta tensors."""
        batch, model = work.batches[0], self.stages[0].model
        split = self.grid.axes.tensor if self.layout.sequence_parallel else 1
        heads = getattr(model.spec, "num_heads", 0)
        sizes = {"B": len(batch["tokens_BT"]), "H": heads // self.grid.axes.tensor}
        for name, value in batch.items():
            if name in TENSORS and (dim := TENSORS[name].length):
                sizes[dim] = value.shape[TENSORS[name].dims.index(dim)] // split
        exact = torch.promote_types(self.dtype, torch.float32)
        return (
            *(
                _meta([d if isinstance(d, int) else sizes[d] for d in dims], self.dtype)
                for dims in model.carries().values()
            ),
            *(_meta(each.shape, exact, has_gradient=each.weight != 0) for each in model.sums().values()),
        )

    def set_training(self, is_training: bool) -> None:
        for stage in self.stages:
            stage.train(is_training)

    def scale_dropout(self, share: float) -> None:
        """Multiply dropout by `share` from now on."""
        for stage in self.stages:
            stage.model.set_dropout(share)

    def after_step(self, sums: Mapping[str, Tensor]) -> None:
        """Give the model the sums of a step's global batch."""
        with torch.no_grad():
            for stage in self.stages:
                stage.model.after_step(sums)

    def reshard(self) -> None:
        for stage in self.stages:
            reshard(stage)
