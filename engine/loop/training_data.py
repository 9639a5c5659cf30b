"""The data of a training on this rank: its batches step by step, which rank has which samples, and what is
held out.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import cast

from atelier.engine.config.base import Json
from atelier.engine.config.batch import unread, unread_note
from atelier.engine.config.run_file import Training
from atelier.engine.loop.assigner import Assigner
from atelier.engine.loop.build import BuildContext, auto_micro_batch
from atelier.engine.loop.evaluation import HeldOut
from atelier.engine.loop.pace import Pace
from atelier.engine.loop.prefetch import Places, Prefetcher, StepData
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.samples import Samples
from atelier.engine.plan.checks import at_step
from atelier.engine.plan.expert_checks import rows_together
from atelier.engine.plan.layout_checks import refuse_measuring


class TrainingData:
    """Opened for the roles `members`. Before the first step is read, `end` is set to the last step, and
    `samples_of_step` where an extension chooses the samples. Raises ConfigError where no micro-batch fits.
    """

    def __init__(
        self,
        training: Training,
        members: Mapping[str, RoleState],
        context: BuildContext,
    ) -> None:
        train, layout, device = training.train.here(), context.layout, context.gang.device
        self._members, self._layout, self._gang = members, layout, context.gang
        models = {name: member.role.model for name, member in training.members.items()}
        resolve = partial(
            auto_micro_batch, layout=layout, device=device, together=rows_together(layout, models)
        )
        self.micro_batch = resolve(train)
        unit = math.lcm(layout.axes.row_unit, *(layout.axes_of(name).row_unit for name in models))
        samples = Samples(training, context.inputs, context.scratch, unit=unit)
        self.labelled = samples.labelled(train.sequence)
        self.tokens, self._sequence = samples.tokens(), train.sequence
        grid = context.grid("", is_student=False)
        self._pace = Pace(layout.speed_log, layout.axes.data, is_measured=layout.assignment == "measured")
        self._assigner = None
        if layout.assignment != "rows":
            self._assigner = Assigner(grid, self._pace, self._row_flops)
            for member in members.values():
                member.pace = self._pace
        if self._pace.is_measured and device.type == "cuda":
            refuse_measuring()
        self._before = self._last = -2  # the steps that were read last
        self.blend = samples.blend  # of rows of so many tokens
        self.end, self.samples_of_step = 0, cast(Places | None, None)
        self._feed: Prefetcher | None = None
        self._open_feed = partial(
            Prefetcher,
            samples.blend,
            train,
            lambda step: resolve(at_step(train, layout, step)),
            grid=grid,
            num_parts=len(training.parts),
            assigner=self._assigner,
        )
        windows, rows, sources = samples.held_out()
        self.held_out = HeldOut(
            windows,
            rows,
            sources=sources,
            num_windows=train.eval_sequences,
            micro_batch=self.micro_batch,
            gang=context.gang,
        )

    def at(self, clock: int) -> StepData:
        """The data of step `clock`."""
        self._before, self._last = self._last, clock
        self._feed = self._feed or self.open_feed()
        return self._feed.at(clock)

    def open_feed(self) -> Prefetcher:
        """The training's batches once more."""
        return self._open_feed(last=self.end, places=self.samples_of_step)

    def notes(self) -> list[str]:
        """What of the data is cut or never read, as sentences."""
        cut = [each.what_is_cut() for each in self.labelled]
        return [text for text in (*cut, unread_note(self.tokens, self._sequence)) if text]

    def summary(self) -> dict[str, Json]:
        """What a model's summary says of its data: prompts of labelled examples that are cut, and the tokens
        of a text after its last window, which are not read.
        """
        cut = {"cut_prompts": sum(each.num_cut() for each in self.labelled)} if self.labelled else {}
        return {**cut, "unread": {name: unread(size, self._sequence) for name, size in self.tokens.items()}}

    def hear(self, clock: int, told: list[int]) -> None:
        """Tell the pace how long each rank computed the step before `clock`, in microseconds."""
        if self._assigner is None or self._before != clock - 1:
            return
        data = self._layout.axes.data
        each = self._gang.world // data
        times = [max(told[rank * each : (rank + 1) * each]) / 1e6 for rank in range(data)]
        self._pace.hear(clock, self._assigner.costs(clock - 1), times)

    def _row_flops(self, tokens: int) -> float:
        """FLOPs of a row of so many tokens, of all roles."""
        return tokens * math.fsum(member.flops_per_token(tokens) for member in self._members.values())

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
