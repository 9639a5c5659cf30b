"""Blend data sets in fixed shares, or shares that change at given samples. Sample i is a pure function of
(seed, i), so the stream is the same for any number of ranks and after any restart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atelier.engine.config.batch import DOCUMENTS, batch_tensor
from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.error import ConfigError
from atelier.engine.config.exact_shares import Stretch, batches_of, stretches_of
from atelier.engine.config.mixture import Assignment, cap_in_rows
from atelier.engine.data.counter_rng import Permutation

BLOCK = 4096
PROBED = 32  # rows from which a data set's row length is estimated


Numbers = Sequence[int] | np.ndarray


class Dataset(Protocol):
    """A data set for a blend. `length`: T of its batches. Data sets whose rows differ by epoch use `epochs`
    of the indices (default 0).

    Optional attributes: `extras`, keys of its batches besides tokens, positions, documents and labels;
    `encoder_length`, U of its batches; `part`, a number that labels its rows in a batch.

    Optional method: `rows_with(begin, end, epoch)`, the rows of an epoch that hold something of a range of
    the source (tokens of a tokens artifact, lines or texts of others, of the split), as int64 [P, 3]: row,
    and begin and end of each piece of the source in it that overlaps the range. A row holds its inputs,
    hidden tokens included, and for an encoder and a decoder also what the decoder predicts; not the token
    after its last, which it only predicts. Without the method, what such rows hold is unknown to an audit.
    """

    length: int

    def __len__(self) -> int: ...

    def batch(self, indices: Numbers, epochs: Numbers | None = None) -> dict[str, np.ndarray]:
        """The rows at `indices` [B] as int64 arrays, named as in engine/config/batch.py: [B, T] for `*_BT`,
        [B] for `*_B`.
        """
        ...


@dataclass(frozen=True)
class _Phase:
    """A run of samples with constant shares: samples per set in a block, first sample, and earlier draws of
    each set.
    """

    number: int
    shares: np.ndarray
    first: int
    drawn: np.ndarray


class Blend:
    """Endless samples of weighted data sets.

    With `assignment` blocks, every block of 4096 samples holds each set in its share of 4096 (largest
    remainder, at least once), in an order keyed by the block. With exact, every prefix of the stream holds
    each set within one sample of its share (engine/config/exact_shares.py). With batches, every `rows`
    samples hold each set in its share, and those of a text together (`texts`: its number, for each set).
    Within a set, each epoch visits every sample once, in an order keyed by the epoch. Reading sample i costs
    the same for any i.

    `later`: ascending samples, each with the weights from it on; the assignment restarts there, epochs
    continue. `caps`: epochs of each set at most, 0 = none; exact only. `last`: samples of the training.
    `unit`: rows are padded to a multiple of this number of tokens. Raises ConfigError for empty sets, for
    sets whose weight is never above 0, and if all sets reach their caps before `last`.
    """

    def __init__(
        self,
        streams: Sequence[tuple[Dataset, float]],
        seed: int,
        *,
        unit: int = 1,
        later: Sequence[tuple[int, Sequence[float]]] = (),
        assignment: Assignment = "blocks",
        caps: Sequence[float] = (),
        last: int = 0,
        rows: int = 0,
        texts: Sequence[int] = (),
    ) -> None:
        every = [[weight for _, weight in streams], *(weights for _, weights in later)]
        read = [max(weights) for weights in zip(*every, strict=True)]
        if (
            not 0 < len(streams) <= BLOCK
            or not all(map(any, every))
            or min(read) <= 0
            or min(map(min, every)) < 0
            or any(len(dataset) < 1 for dataset, _ in streams)
        ):
            raise ConfigError(
                "streams",
                f"{len(streams)} of {[len(d) for d, _ in streams]} rows, weights by phase {every}",
                f"give 1 to {BLOCK} streams, each with a sample and a weight above 0 in some phase",
            )
        self._datasets = [dataset for dataset, _ in streams]
        self._seed = seed
        self._exact: list[Stretch] = []
        self._phases: list[_Phase] = []
        self._blocks: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        phases = [(0, every[0]), *later]
        if assignment == "batches":
            self._exact = batches_of(phases, texts, rows, seed)
        elif assignment == "exact":
            every_cap = zip(self._datasets, caps or [0.0] * len(streams), strict=True)
            limits = [cap_in_rows(cap, len(dataset)) if cap else 0 for dataset, cap in every_cap]
            self._exact = stretches_of(phases, limits, seed, last)
        for number, (first, weights) in enumerate(phases if assignment == "blocks" else []):
            drawn = self._drawn_at(first) if number else np.zeros(len(streams), dtype=np.int64)
            self._phases.append(_Phase(number, np.array(shares(weights)), first, drawn))
        self.length = unit * -(-max(dataset.length for dataset in self._datasets) // unit)
        encoder_length = max(getattr(dataset, "encoder_length", 0) for dataset in self._datasets)
        self._lengths = {"T": self.length, "U": unit * -(-encoder_length // unit)}
        self._extras = sorted({name for dataset in self._datasets for name in getattr(dataset, "extras", ())})
        self._parts = [getattr(dataset, "part", None) for dataset in self._datasets]

    def samples(self, first: int, count: int) -> list[tuple[int, int]]:
        """(data set, its sample) for i = first .. first + count - 1."""
        sets, samples, _ = self._chosen(np.arange(first, first + count))
        return list(zip(sets.tolist(), samples.tolist(), strict=True))

    def dataset(self, number: int) -> Dataset:
        return self._datasets[number]

    @property
    def num_sets(self) -> int:
        return len(self._datasets)

    def sets(self, places: np.ndarray) -> np.ndarray:
        """The data set of each of these samples."""
        return self._chosen(places)[0]

    @property
    def lengths(self) -> tuple[int, int]:
        """T and U of its batches."""
        return self._lengths["T"], self._lengths["U"]

    def row_length(self, number: int) -> int:
        """The tokens that a row of a data set has room for, an encoder's included."""
        dataset = self._datasets[number]
        return dataset.length + int(getattr(dataset, "encoder_length", 0))

    def tokens(self, number: int) -> int:
        """The tokens of the longest of a data set's first rows."""
        dataset = self._datasets[number]
        return _longest(dataset.batch(np.arange(min(PROBED, len(dataset))))["documents_BT"])

    def _chosen(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each sample: its set, the sample in the set, and its epoch."""
        sets, drawn = self._assigned(places)
        result, epochs = np.empty_like(places), np.empty_like(places)
        for n, dataset in enumerate(self._datasets):
            for epoch in np.unique(drawn[sets == n] // len(dataset)).tolist():
                mine = (sets == n) & (drawn // len(dataset) == epoch)
                order = Permutation(len(dataset), self._seed, "epoch", n, epoch)
                result[mine], epochs[mine] = order(drawn[mine] % len(dataset)), epoch
        return sets, result, epochs

    def _assigned(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each sample: its set, and earlier draws of that set."""
        sets, drawn = np.empty_like(places), np.empty_like(places)
        firsts = np.array([each.first for each in self._exact or self._phases])
        phases = np.searchsorted(firsts, places, side="right") - 1
        if self._exact:
            for number in np.unique(phases).tolist():
                mine = phases == number
                sets[mine], drawn[mine] = self._exact[number].chosen(places[mine])
            return sets, drawn
        inside = places - firsts[phases]
        for number, block in np.unique(np.stack([phases, inside // BLOCK]), axis=1).T.tolist():
            mine = (phases == number) & (inside // BLOCK == block)
            found = self._block(self._phases[number], block)
            sets[mine], drawn[mine] = (values[inside[mine] % BLOCK] for values in found)
        return sets, drawn

    def _block(self, phase: _Phase, block: int) -> tuple[np.ndarray, np.ndarray]:
        """For each place in a phase's block: its set, and earlier draws of that set in the block."""
        key = (phase.number, block)
        if key not in self._blocks:
            name = ("phase", phase.number, "block", block) if phase.number else ("block", block)
            ranks = Permutation(BLOCK, self._seed, *name)(np.arange(BLOCK))
            sets = np.searchsorted(np.cumsum(phase.shares), ranks, side="right")
            drawn = np.empty_like(sets)
            for n, share in enumerate(phase.shares.tolist()):
                drawn[sets == n] = phase.drawn[n] + block * share + np.arange(share)
            self._blocks = {key: (sets, drawn)}  # the stream is read in order: keep the current block
        return self._blocks[key]

    def _drawn_in(self, phase: _Phase, place: int) -> np.ndarray:
        blocks, rest = divmod(place - phase.first, BLOCK)
        sets, _ = self._block(phase, blocks)
        return phase.drawn + blocks * phase.shares + np.bincount(sets[:rest], minlength=len(phase.shares))

    @property
    def num_rows(self) -> int:
        """Rows of all data sets."""
        return sum(len(dataset) for dataset in self._datasets)

    def drawn(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """For each data set: its rows, and its draws before sample `first` and before `end`."""
        before, after = self._drawn_at(first).tolist(), self._drawn_at(end).tolist()
        return list(zip(map(len, self._datasets), before, after, strict=True))

    def _drawn_at(self, place: int) -> np.ndarray:
        """How often each set was drawn before this sample."""
        if self._exact:
            return np.array(next(s for s in reversed(self._exact) if s.first <= place).drawn_before(place))
        phase = next(one for one in reversed(self._phases) if one.first <= place)
        return self._drawn_in(phase, place)

    def draws_before(self, number: int, place: int) -> int:
        """How often a data set was drawn before this sample."""
        return int(self._drawn_at(place)[number])

    def order(self, number: int, epoch: int) -> Permutation:
        """Draw within an epoch of a data set -> its row."""
        return Permutation(len(self._datasets[number]), self._seed, "epoch", number, epoch)

    def places(self, number: int, draws: np.ndarray) -> np.ndarray:
        """The samples that are these draws [B] of a data set, counted from 0; -1 for draws that never come.
        The inverse of `_assigned`.
        """
        found = np.full(len(draws), -1, dtype=np.int64)
        for part in self._exact or self._phases:  # in order: of several with this draw, the last has it
            mine = draws >= int(part.drawn[number])
            if isinstance(part, Stretch):
                found[mine] = part.places(number, draws[mine]) if part.weights[number] else -1
            else:
                found[mine] = self._places_in(part, number, draws[mine]) if part.shares[number] else -1
        return found

    def _places_in(self, phase: _Phase, number: int, draws: np.ndarray) -> np.ndarray:
        blocks, ranks = np.divmod(draws - phase.drawn[number], phase.shares[number])
        found = np.empty_like(draws)
        order = np.argsort(blocks, kind="stable")
        firsts = np.flatnonzero(np.diff(blocks[order], prepend=-1))
        for mine in np.split(order, firsts[1:]) if len(order) else []:
            block = int(blocks[mine[0]])
            inside = np.flatnonzero(self._block(phase, block)[0] == number)
            found[mine] = phase.first + block * BLOCK + inside[ranks[mine]]
        return found

    def batch(self, first: int, count: int) -> dict[str, np.ndarray]:
        """Samples first .. first + count - 1 as one batch."""
        return self.rows(np.arange(first, first + count))

    def rows(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """The samples at `places` [B] as one batch [B, length], padded; a row of place -1 is padding alone.

        If any set has an extra key, every batch has it, with its neutral value in other sets' rows. If any
        set has a `part`, the batch has parts_B, -1 for sets without one.
        """
        count = len(places)
        if count and (places < 0).all():
            return {name: np.repeat(values, count, axis=0) for name, values in self.padding().items()}
        sets_B, samples_B, epochs_B = self._chosen(np.maximum(places, 0))
        sets_B[places < 0] = -1
        result = {name: self._empty(name, count) for name in self._extras}
        for n, dataset in enumerate(self._datasets):
            rows = np.flatnonzero(sets_B == n)
            if not rows.size:
                continue
            for name, values in dataset.batch(samples_B[rows], epochs_B[rows]).items():
                if name not in result:
                    result[name] = self._empty(name, count)
                if values.ndim == 1:
                    result[name][rows] = values
                else:
                    result[name][rows, : values.shape[1]] = values
        if any(part is not None for part in self._parts):
            parts = [-1 if part is None else part for part in self._parts]
            result["parts_B"] = np.array([*parts, -1], dtype=np.int64)[sets_B]
        return result

    def padding(self) -> dict[str, np.ndarray]:
        """A batch of one row without tokens."""
        batch = self.rows(np.array([0]))
        return {name: np.full_like(values, batch_tensor(name).fill) for name, values in batch.items()}

    def _empty(self, name: str, count: int) -> np.ndarray:
        entry = batch_tensor(name)
        shape = tuple(self._lengths.get(dim, count) for dim in entry.dims)
        return np.full(shape, entry.fill, dtype=np.int64)


def planned(plan: DataPlan, datasets: Sequence[Dataset], *, unit: int = 1) -> Blend:
    """The blend of a training's data plan; `datasets` are those of its streams."""
    named = [stream.source for stream in plan.streams]
    return Blend(
        [(dataset, stream.weight) for dataset, stream in zip(datasets, plan.streams, strict=True)],
        plan.seed,
        unit=unit,
        later=plan.later(),
        assignment=plan.assignment,
        caps=[stream.epochs for stream in plan.streams],
        last=plan.last,
        rows=plan.global_batch,
        texts=[sorted(set(named)).index(name) for name in named],
    )


def trimmed(batch: dict[str, np.ndarray], unit: int) -> dict[str, np.ndarray]:
    """The batch without columns that are padding in all rows; its length stays a multiple of `unit`, or does
    not change.
    """
    found = {dim: batch[name] for dim, name in DOCUMENTS.items() if name in batch}
    ends = {dim: -(-_longest(documents) // unit) * unit for dim, documents in found.items()}
    return {
        name: values[:, : ends[dim]] if (dim := batch_tensor(name).length) else values
        for name, values in batch.items()
    }


def _longest(documents: np.ndarray) -> int:
    """Tokens of the longest row; at least 1."""
    return 1 + int(np.flatnonzero((documents >= 0).any(axis=0)).max(initial=0))


def shares(weights: Sequence[float]) -> list[int]:
    """Samples per block for each weight: largest remainder, ties to the first, at least one for weights above
    0.
    """
    exact = np.array(weights, dtype=np.float64) / sum(weights) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: BLOCK - counts.sum()]] += 1
    for n in np.flatnonzero((counts == 0) & (exact > 0)):
        counts[n] += 1
        counts[np.argmax(counts)] -= 1
    return counts.tolist()
