"""The stages of one role that lie on this rank, as one thing that trains and infers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from atelier.engine.loop.learner import Learner, Work
from atelier.engine.model.gpt import Block
from atelier.engine.parallel.grid import Grid
from atelier.engine.parallel.pipeline import Pipeline, add_up_tied
from atelier.engine.parallel.shard import between_micro_batches, reshard
from atelier.engine.placement import local, settle_gradient
from atelier.engine.spec.parallel import Parallel

After = Callable[[int, Tensor], Any]


class Body:
    """`tied`: children of the model whose weights the first and the last stage both have."""

    def __init__(
        self,
        stages: list[Learner],
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

    def train(self, work: Work, after: After) -> None:
        """Forward and backward of all micro-batches. Where outputs are, `after(index, total)` is called
        between the two and returns what the backward pass begins with.
        """
        if self.pipeline is None:
            for index in range(len(work.batches)):
                self.train_one(index, work, after)
        else:
            self.pipeline.train(work, num_micro=len(work.batches), shape=self._shape(work), after=after)

    def settle_gradients(self) -> None:
        """After the last micro-batch: gradients are placed as their weights, tied ones are added up."""
        for weight in self.parameters().values():
            settle_gradient(weight)
        if self.pipeline is not None:
            found = {name: local(weight.grad) for name, weight in self.parameters().items()}
            add_up_tied({name: g for name, g in found.items() if g is not None}, self.tied, self.grid)

    def train_one(self, index: int, work: Work, after: After) -> None:
        """Forward and backward of one micro-batch of a role that is no pipeline."""
        (stage,) = self.stages
        if self.layout.zero == 1:
            between_micro_batches(stage, is_last=index == len(work.batches) - 1)
        after(index, stage(None, index=index, work=work)).backward()

    def infer(self, work: Work, after: After) -> None:
        """Forward of all micro-batches."""
        if self.pipeline is None:
            for index in range(len(work.batches)):
                after(index, self.stages[0](None, index=index, work=work))
            return
        self.pipeline.infer(work, num_micro=len(work.batches), shape=self._shape(work), after=after)

    def _shape(self, work: Work) -> tuple[int, ...]:
        rows, tokens = work.batches[0]["tokens_BT"].shape
        if self.grid.axes.tensor > 1 and self.layout.sequence_parallel:
            tokens //= self.grid.axes.tensor
        return rows, tokens, self.hidden

    def set_training(self, is_training: bool) -> None:
        for stage in self.stages:
            stage.train(is_training)

    def ease(self, share: float) -> None:
        """Multiply dropout by this from now on."""
        for stage in self.stages:
            for module in stage.modules():
                if isinstance(module, Block):
                    module.dropout = module.most_dropout * share

    def reshard(self) -> None:
        for stage in self.stages:
            reshard(stage)
