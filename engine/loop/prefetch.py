"""The batches of each step on this rank, read one step ahead in a thread. They are pure functions of the step
(and of an extension's measurements, if one chooses samples).

Step s takes samples [s G, (s+1) G) of the blend, G the global batch (if it grows: the G samples after all
earlier ones). Data index d of N takes the d-th of N equal runs of them, or those that an extension assigns.
Ranks that share a model, a row's tokens or a matrix have the same data index and read the same samples.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atelier.engine.config.batch import PADDING
from atelier.engine.config.train import Train
from atelier.engine.data.blend import Blend
from atelier.engine.loop.counts import Counts, count
from atelier.engine.model.packed import with_ends
from atelier.engine.parallel.grid import Grid

Batch = dict[str, Tensor]
Places = Callable[[int], Sequence[int] | np.ndarray | None]  # step -> its samples
Arrays = dict[str, np.ndarray]
# (blend, samples, longest rows, step) -> this rank's micro-batches
RankBatches = Callable[[Blend, np.ndarray, int, int], Iterable[Arrays]]


@dataclass(frozen=True)
class StepData:
    batches: list[Batch]  # one per micro-batch, on the gang's device
    counts: Counts  # counts of these samples; 0 if another rank counts them
    wait_s: float = 0.0


class Prefetcher:
    """Reads a blend on one rank; steps before `last` are prefetched."""

    def __init__(
        self,
        open_blend: Callable[[int], Blend],
        train: Train,
        micro_batch: Callable[[int], int],
        *,
        last: int,
        grid: Grid,
        num_parts: int = 0,
        places: Places | None = None,
        batches: RankBatches | None = None,
        num_rows: Callable[[int], int] | None = None,
    ) -> None:
        """`open_blend` opens the blend for a sequence length; `micro_batch` gives the sequences of a
        micro-batch at a step; `num_rows` the rows of all ranks, where a ramp has fewer samples: rows of
        padding follow. `places`: the samples of a step, if an extension chooses them; None for a step
        = not known yet. `batches`: those of this rank, likewise; otherwise every rank has equally many
        samples.
        """
        self._places, self._batches, self._num_rows = places, batches, num_rows
        self._open, self._train, self._micro_batch = open_blend, train, micro_batch
        self._grid, self._last, self._num_parts = grid, last, num_parts
        self._blend: tuple[int, Blend] | None = None  # sequence length and blend of the last step
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._ahead: tuple[int, Future[StepData]] | None = None

    def at(self, clock: int) -> StepData:
        """The data of step `clock`; the next step's data is prepared meanwhile."""
        begin = time.perf_counter()
        if self._ahead is None or self._ahead[0] != clock:
            self._ahead = (clock, self._thread.submit(self._make, clock, self._samples(clock)))
        data = self._ahead[1].result()
        self._ahead = None
        if clock + 1 < self._last and (places := self._samples(clock + 1)) is not None:
            self._ahead = (clock + 1, self._thread.submit(self._make, clock + 1, places))
        batches = [
            {name: tensor.to(self._grid.gang.device, non_blocking=True) for name, tensor in batch.items()}
            for batch in data.batches
        ]
        return StepData(batches, data.counts, time.perf_counter() - begin)

    def blend(self, sequence: int) -> Blend:
        """The blend in rows of `sequence` tokens; only the last one is kept open."""
        if self._blend is None or self._blend[0] != sequence:
            self._blend = (sequence, self._open(sequence))
        return self._blend[1]

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _samples(self, clock: int) -> np.ndarray | None:
        """The samples of a step; None while they are not known."""
        if self._places is not None:
            found = self._places(clock)
            return None if found is None else np.array(found)
        before = self._train.progressive.samples_before(clock, self._train.global_batch)
        return np.arange(before, before + self._train.at(clock).global_batch)

    def _make(self, clock: int, places: np.ndarray | None) -> StepData:
        assert places is not None  # known for a step that is taken
        now = self._train.at(clock)
        blend, size = self.blend(now.sequence), self._micro_batch(clock)
        if self._batches is not None:
            batches = [tensors_of(batch) for batch in self._batches(blend, places, size, clock)]
        else:
            missing = self._num_rows(clock) - len(places) if self._num_rows is not None else 0
            whole = np.pad(places, (0, missing), constant_values=PADDING)
            own = np.split(whole, self._grid.axes.data)[self._grid.data_index]
            batches = [
                tensors_of(blend.rows(part)) | {"samples_B": torch.from_numpy(part)}
                for part in np.split(own, len(own) // size)
            ]
        device = self._grid.gang.device
        batches = [with_ends(batch, device) for batch in batches]
        if device.type == "cuda":  # copies from pinned memory run beside computation
            batches = [{name: tensor.pin_memory() for name, tensor in batch.items()} for batch in batches]
        return StepData(batches, count(batches if self._grid.counts_samples else [], self._num_parts))


def tensors_of(arrays: Arrays) -> Batch:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
