"""Held-out evaluation during training: always the same rows; training state does not change."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from atelier.engine.config.batch import ENCODER, NOT_SCORED, TENSORS
from atelier.engine.config.evaluation import held_out_name
from atelier.engine.data.blend import Dataset
from atelier.engine.loop.counts import Counts, count
from atelier.engine.loop.prefetch import Batch, tensors_of
from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.packed import with_ends
from atelier.engine.objective.load import RIGHT, logged
from atelier.engine.parallel.gang import Gang
from atelier.engine.parallel.grid import Grid

Streams = Sequence[tuple[Dataset, float]]


class HeldOut:
    """The first rows of each held-out split, in the streams' shares (at least one row each), sharded over
    ranks. A stream with share 0 is not part of `eval/loss` and has its own loss.

    Every role is evaluated on `windows`, from `sources` (name -> fingerprint of a tokens artifact, in order);
    rows of other kinds are only for roles with an objective that reads them.
    """

    def __init__(
        self,
        windows: Streams,
        rows: Mapping[str, Streams],
        *,
        sources: Mapping[str, str],
        num_windows: int,
        micro_batch: int,
        gang: Gang,
    ) -> None:
        self._micro_batch, self._gang, self._sources = micro_batch, gang, sources
        self._windows = windows
        self._text = _first([each for each in windows if each[1]], num_windows)
        alone = max(1, num_windows // max(1, len(windows)))
        self._places = {
            f"/{name}": [place for place in self._text if place[0] is stream]
            if share
            else _first([(stream, 1.0)], alone)
            for name, (stream, share) in zip(sources, windows, strict=True)
        }
        self._places |= {kind: _first(streams, num_windows) for kind, streams in rows.items()}
        self._batches: dict[tuple[str, int, int], list[Batch]] = {}
        datasets = [dataset for streams in rows.values() for dataset, _ in streams]
        self._encoder_length = max((getattr(each, "encoder_length", 0) for each in datasets), default=0)

    @property
    def is_empty(self) -> bool:
        return not any(self._places.values())

    @property
    def name(self) -> str:
        """The name of these windows; losses under equal names are comparable."""
        counts = Counter(id(stream) for stream, _ in self._text)
        pairs = zip(self._sources.values(), self._windows, strict=True)
        length = max((stream.length for stream, _ in self._text), default=0)
        rows = {source: counts[id(stream)] for source, (stream, share) in pairs if share}
        return held_out_name(rows, length)

    def means(self, member: RoleState) -> dict[str, float]:
        """Held-out means by metric name, in nats: next-token loss on windows, per source too if there are
        several (only for roles that predict tokens), and each objective's mean on its rows; for classes also
        the accuracy.
        """
        found = self._of_text(member)
        for name, spec in member.role.objective.items():
            kind = type(spec).reads
            if type(spec).needs_teacher or not self._places.get(kind):
                continue
            loss, right, number = self._sums(member, kind, name)
            found[f"eval/objective/{name}"] = loss / number
            if name + RIGHT in logged(name, spec):
                found[f"eval/objective/accuracy/{name}"] = right / number
        return found

    def _of_text(self, member: RoleState) -> dict[str, float]:
        read = [name for name in self._sources if self._places[f"/{name}"]]
        if not read or not member.role.predicts:
            return {}
        sums = {name: self._sums(member, f"/{name}", member.text) for name in read}
        several = {f"eval/source/{name}": loss / number for name, (loss, _, number) in sums.items()}
        found = several if len(self._sources) > 1 else {}
        shares = [share for _, share in self._windows]
        mixed = [
            sums[name] for name, share in zip(self._sources, shares, strict=True) if share and name in sums
        ]
        if not mixed:
            return found
        whole = sum(loss for loss, _, _ in mixed) / sum(number for _, _, number in mixed)
        return {"eval/loss": whole} | found

    def _sums(self, member: RoleState, kind: str, name: str) -> tuple[float, float, float]:
        """Over all ranks: sum of losses, number of right rows, number of tokens or rows."""
        key = (kind, member.grid.data_index, member.grid.axes.data)
        if key not in self._batches:
            self._batches[key] = self._read(*key, next(iter(member.parts_of(kind)), -1))
        batches = self._batches[key]
        total = torch.zeros(3, dtype=torch.float64, device=self._gang.device)
        total[:2] = member.evaluate(batches, name)
        if speaks(member.grid):
            counts: Counts = count(batches, len(member.parts))
            total[2] = counts.of(None if kind.startswith("/") else member.reads(name))
        loss, right, number = self._gang.sum(total).tolist()
        return loss, right, number

    def _read(self, kind: str, index: int, parts: int, part: int) -> list[Batch]:
        """Shard `index` of `parts`. All shards have equal shapes and batch counts, because a sharded forward
        is collective.
        """
        every = self._places[kind]
        num, device = len(every), self._gang.device
        size = max(1, min(self._micro_batch, -(-num // parts)))
        result = []
        for first in range(index * size, num + index * size, size * parts):
            places = [every[min(row, num - 1)] for row in range(first, first + size)]
            rows = [tensors_of(stream.batch([place])) for stream, place in places]
            whole = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
            batch = {name: each.to(device) for name, each in with_ends(whole, device).items()}
            is_padding = torch.arange(first, first + size, device=device) >= num
            batch["labels_BT"] = batch["labels_BT"].masked_fill(is_padding[:, None], NOT_SCORED)
            if "classes_B" in batch:
                batch["classes_B"] = batch["classes_B"].masked_fill(is_padding, NOT_SCORED)
            batch["parts_B"] = torch.full((size,), part, device=device)
            if self._encoder_length:
                batch = _empty_encoder(size, self._encoder_length, device) | batch
            result.append(batch)
        return result


def _empty_encoder(rows: int, length: int, device: torch.device) -> Batch:
    """An empty encoder input, for rows without one in a blend."""
    found = {"B": rows, "U": length}
    return {
        name: torch.full([found[dim] for dim in TENSORS[name].dims], TENSORS[name].fill, device=device)
        for name in ENCODER
    }


def _first(streams: Streams, number: int) -> list[tuple[Dataset, int]]:
    """The first rows of each stream, `number` in total."""
    whole = sum(weight for _, weight in streams)  # no stream, as in fine-tuning on examples: no evaluation
    wanted = [max(1, round(number * weight / whole)) for _, weight in streams]
    return [
        (stream, i)
        for (stream, _), most in zip(streams, wanted, strict=True)
        for i in range(min(most, len(stream)))
    ]


def speaks(grid: Grid) -> bool:
    """Whether this rank counts the labels of its rows: one rank of those with the same rows does."""
    return grid.is_last and not (grid.places["context"] or grid.places["tensor"])
