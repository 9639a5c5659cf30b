"""The data of a training on this rank: batches by step, assignment of samples to ranks, and held-out rows."""

import math
from collections.abc import Iterable, Mapping
from functools import partial

from atelier.engine.config.base import Json
from atelier.engine.config.batch import unread, unread_note
from atelier.engine.config.run_file import Training
from atelier.engine.loop.build import BuildContext, auto_micro_batch
from atelier.engine.loop.evaluation import HeldOut
from atelier.engine.loop.prefetch import Places, Prefetcher, RankBatches, StepData
from atelier.engine.loop.samples import Samples, consumed
from atelier.engine.plan.checks import at_step
from atelier.engine.plan.expert_checks import rows_together


class TrainingData:
    """Set these before the first step is read: `end` to the last step; `samples_of_step` if an extension
    chooses the samples; `batches_of_step` if it chooses a rank's samples. Raises ConfigError if no
    micro-batch fits.
    """

    def __init__(self, training: Training, context: BuildContext) -> None:
        self._training = training
        train, layout, device = training.train.here(), context.layout, context.gang.device
        models = {name: member.role.model for name, member in training.members.items()}
        together = rows_together(layout, models)
        sizes_at = partial(at_step, train, layout, pads=training.reads_labels, together=together)
        resolve = partial(auto_micro_batch, layout=layout, device=device, together=together)
        self.micro_batch = resolve(sizes_at(train.first_steps()[-1]))
        unit = math.lcm(layout.axes.row_unit, *(layout.axes_of(name).row_unit for name in models))
        samples = Samples(training, context.inputs, context.scratch, unit=unit)
        self.labelled = samples.labelled(train.sequence)
        self.tokens, self._sequence = samples.tokens(), train.sequence
        self.blend = samples.blend  # sequence length -> blend
        self.end = 0
        self.samples_of_step: Places | None = None
        self.batches_of_step: RankBatches | None = None
        self._feed: Prefetcher | None = None
        self._open_feed = partial(
            Prefetcher,
            samples.blend,
            train,
            lambda step: resolve(sizes_at(step)),
            grid=context.grid("", is_student=False),
            num_parts=len(training.parts),
            num_rows=(lambda step: sizes_at(step).global_batch)
            if train.progressive.rampup.is_on or training.reads_labels
            else None,
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
        self._feed = self._feed or self.open_feed()
        return self._feed.at(clock)

    def open_feed(self) -> Prefetcher:
        """Open the training's batches again."""
        return self._open_feed(last=self.end, places=self.samples_of_step, batches=self.batches_of_step)

    def notes(self) -> list[str]:
        """Warnings about data that is cut or never read."""
        cut = [each.what_is_cut() for each in self.labelled]
        return [text for text in (*cut, unread_note(self.tokens, self._sequence)) if text]

    def summary(self) -> dict[str, Json]:
        """Entries on data for a model's summary: prompts of labelled examples that are cut, and unread tokens
        after a text's last window.
        """
        cut = {"cut_prompts": sum(each.num_cut() for each in self.labelled)} if self.labelled else {}
        return {**cut, "unread": {name: unread(size, self._sequence) for name, size in self.tokens.items()}}

    def consumed(self, start: int, end: int, left_out: Iterable[int]) -> Mapping[str, Json]:
        """Entry on the data read in these steps without `left_out`, for a model's summary (samples.py);
        empty if an extension chooses the samples.
        """
        if self.samples_of_step is not None:
            return {}
        opened = self.blend if self._feed is None else self._feed.blend
        return {"consumed": consumed(self._training, opened, start, end, left_out)}

    def close(self) -> None:
        if self._feed is not None:
            self._feed.close()
