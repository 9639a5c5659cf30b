"""Held-out loss while training goes on: the same windows at every look, no state touched."""

from collections.abc import Sequence

import torch

from engine.data.windows import NOT_SCORED, Windows
from engine.loop.feed import Batch, tensors_of
from engine.loop.member import Member
from engine.parallel.gang import Gang
from engine.parallel.grid import Grid


class HeldOut:
    """The first windows of each held-out split, in the shares of the streams (one at least), dealt out over
    the ranks.
    """

    def __init__(
        self, streams: Sequence[tuple[Windows, float]], *, num_windows: int, micro_batch: int, gang: Gang
    ) -> None:
        whole = sum(weight for _, weight in streams)  # no stream, as in fine-tuning on examples: no look
        wanted = [max(1, round(num_windows * weight / whole)) for _, weight in streams]
        self._places = [
            (stream, i)
            for (stream, _), number in zip(streams, wanted, strict=True)
            for i in range(min(number, len(stream)))
        ]
        self._micro_batch, self._gang = micro_batch, gang
        self._batches: dict[tuple[int, int], list[Batch]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._places

    def loss(self, member: Member) -> float:
        """Mean next-token loss over all scored held-out tokens, nats."""
        key = (member.grid.data_index, member.grid.axes.data)
        if key not in self._batches:
            self._batches[key] = self._read(*key)
        batches = self._batches[key]
        total = torch.zeros(2, dtype=torch.float64, device=self._gang.device)
        total[0] = member.look(batches)
        if speaks(member.grid):
            total[1] = sum(int((batch["labels_BT"] >= 0).sum()) for batch in batches)
        loss, count = self._gang.sum(total).tolist()
        return loss / count

    def _read(self, index: int, parts: int) -> list[Batch]:
        """The index-th of so many parts, of one shape and as many batches as every other: a sharded forward
        is a collective.
        """
        num = len(self._places)
        size = max(1, min(self._micro_batch, -(-num // parts)))
        result = []
        for first in range(index * size, num + index * size, size * parts):
            places = [self._places[min(row, num - 1)] for row in range(first, first + size)]
            rows = [tensors_of(stream.batch([place])) for stream, place in places]
            batch = {name: torch.cat([row[name] for row in rows]).to(self._gang.device) for name in rows[0]}
            is_padding = torch.arange(first, first + size, device=self._gang.device) >= num
            batch["labels_BT"] = batch["labels_BT"].masked_fill(is_padding[:, None], NOT_SCORED)
            result.append(batch)
        return result


def speaks(grid: Grid) -> bool:
    """Whether this rank counts its rows' labels: one of those that have the same rows."""
    return grid.is_last and not (grid.places["context"] or grid.places["tensor"])
