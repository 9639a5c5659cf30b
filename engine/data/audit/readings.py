"""When a training read a span of its data: how often, and at which steps. Exact, from its data plan alone:
which draw of a data set has a row, and which sample and step that draw is, are inverted (blend.py).

Ranges are of the train split of one source: tokens of a tokens artifact; lines of triples, attributes and
labels; texts of imitations, of each line first the generated one; conversations of chats.

Shape letters: R ranges, P pieces of rows that overlap ranges.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np

from atelier.engine.config.base import Json
from atelier.engine.config.data_plan import DataPlan, EqualSteps, steps_of
from atelier.engine.config.error import DataError
from atelier.engine.config.mixture import EXAMPLES, WINDOWS, Stream
from atelier.engine.data.blend import Blend, Dataset, planned
from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.datasets.load import open_stream
from atelier.engine.data.examples import DrawnLines
from atelier.engine.data.tokens import TokenText, Windows
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

MOST_STEPS = 100  # listed of a reading


@dataclass(frozen=True, kw_only=True)
class SpanReading:
    """When a range was read. `times`: rows read that hold something of it; None = unknown, for the reason
    `unknown`, and then the other fields are only what is known. `whole`: passes over a data set in which all
    of it was held by rows that were read. `first`, `last`: steps, 0 = the training's first; None = never.
    `steps`: the first MOST_STEPS of `num_steps` different ones. `kinds`: times by kind of rows.
    """

    times: int | None
    whole: int = 0
    first: int | None = None
    last: int | None = None
    steps: tuple[int, ...] = ()
    num_steps: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""


@dataclass(frozen=True)
class _Hits:
    """Pieces of rows that were read, all [P]: range, step, draw of its stream, the piece of the source,
    number of the stream, and pass over a data set.
    """

    ranges_P: np.ndarray
    steps_P: np.ndarray
    draws_P: np.ndarray
    begins_P: np.ndarray
    ends_P: np.ndarray
    streams_P: np.ndarray
    passes_P: np.ndarray


class Span(NamedTuple):
    """Tokens begin .. end - 1. `is_exact`: whether they are just those of the characters that were asked for;
    otherwise those of the whole document.
    """

    begin: int
    end: int
    is_exact: bool


class DocumentSpans:
    """The training documents of a tokens artifact. Document d is the d-th line of its corpus with split
    "train". Ranges are without the tokens that encoding adds before and after a text.
    """

    def __init__(self, tokens: ArtifactInput, vocabulary: Vocabulary, scratch: Path) -> None:
        self._text, self._vocabulary = TokenText(tokens, scratch, TRAIN), vocabulary

    def __len__(self) -> int:
        return len(self._text.ends_D)

    def documents(self, numbers: Iterable[int]) -> np.ndarray:
        """The range of each of these documents, int64 [R, 2]."""
        numbers_R = np.array(list(numbers), dtype=np.int64)
        begins_R, ends_R = self._text.begins_of(numbers_R), self._text.ends_D[numbers_R]
        has_end_R = (ends_R > begins_R) & (self._text.at(ends_R - 1, -1) == self._vocabulary.end_id)
        begins_R = np.minimum(begins_R + len(self._vocabulary.before), ends_R - has_end_R)
        return np.stack([begins_R, ends_R - has_end_R], axis=1)

    def size(self, text: str) -> int:
        """The tokens of a text alone."""
        return len(self._vocabulary.encode(text))

    def characters(self, number: int, text: str, first: int, last: int) -> Span:
        """The tokens of characters first .. last - 1 of a document, whose `text` is encoded again. The whole
        document if its tokens are not those of the text, or if the tokenizer does not locate them.
        """
        [[begin, end]] = self.documents([number]).tolist()
        ids, places = self._vocabulary.located(text)
        if self._text.tokens_N[begin:end].tolist() == ids:
            found = [n for n, (a, b) in enumerate(places) if a < last and first < b]
            if found:
                return Span(begin + found[0], begin + found[-1] + 1, True)
        return Span(begin, end, False)


class _Telling(Dataset, Protocol):
    """A data set that tells what its rows hold."""

    def rows_with(self, begin: int, end: int, epoch: int) -> np.ndarray: ...


class _Unopened:
    """Stands for a data set of a source that is not asked for."""

    length = 1

    def __len__(self) -> int:
        return 1

    def batch(self, indices: object, epochs: object = None) -> dict[str, np.ndarray]:
        raise DataError("rows of a source that was not opened")


class PlannedData:
    """The data of a plan over its artifacts. `inputs`: by the streams' keys, and `tokenizer`; those of
    sources that are not asked for may be missing, except capped ones.
    """

    def __init__(self, plan: DataPlan, inputs: Mapping[str, ArtifactInput], scratch: Path) -> None:
        self.plan, self._inputs, self._scratch = plan, inputs, scratch
        self._opened: dict[tuple[int, int], Dataset] = {}
        self._passes: dict[tuple[int, int, int], int] = {}
        self._vocabulary: Vocabulary | None = None

    def blend(self, sequence: int, source: str | None = None) -> Blend:
        """The blend in rows of `sequence` tokens; with a source, only that one's rows are opened."""
        # steps are asked for in order: keep the data sets of one length
        self._opened = {key: found for key, found in self._opened.items() if key[1] == sequence}
        is_exact = self.plan.assignment == "exact"
        opened = [
            self._opened_at(number, sequence)
            if source in (None, each.input) or (each.epochs and is_exact)
            else _Unopened()
            for number, each in enumerate(self.plan.streams)
        ]
        return planned(self.plan, opened)

    def _opened_at(self, number: int, sequence: int) -> Dataset:
        key = (number, sequence)
        if key not in self._opened:
            self._opened[key] = self._open(self.plan.streams[number], sequence)
        return self._opened[key]

    def _open(self, stream: Stream, sequence: int) -> Dataset:
        if stream.input not in self._inputs:
            raise DataError(f"{stream.input}: the artifact is missing")
        source, seed = self._inputs[stream.input], self.plan.seed
        if stream.kind == WINDOWS:
            return Windows(source, self._scratch, TRAIN, sequence)
        if stream.kind == EXAMPLES:
            return DrawnLines(
                source, self._scratch, num_examples=stream.num_examples, draw=stream.draw, seed=seed
            )
        if self._vocabulary is None:
            if "tokenizer" not in self._inputs:
                raise DataError("tokenizer: the artifact is missing")
            self._vocabulary = Vocabulary.of(self._inputs["tokenizer"], self._scratch)
        return open_stream(
            stream, source, self._vocabulary, self._scratch, split=TRAIN, sequence=sequence, seed=seed
        )

    def readings(
        self, source: str, ranges_R2: np.ndarray, start: int, end: int, left_out: Collection[int] = ()
    ) -> list[SpanReading]:
        """When each range [begin, end) of a source was read in steps start <= step < end. `source`: the key
        of streams, such as tokens.main. `left_out`: steps that were passed over.
        """
        hits: list[_Hits] = []
        unknown: dict[str, None] = {}
        for run in self.plan.runs(start, end):
            blend = self.blend(run.sequence, source)
            for number, stream in enumerate(self.plan.streams):
                if stream.input != source or self._draws(blend, number, run)[0] == 0:
                    continue
                if not hasattr(blend.dataset(number), "rows_with"):
                    unknown[f"rows of kind {stream.kind} do not tell what they hold"] = None
                    continue
                hits += self._hits(blend, number, run, ranges_R2)
        every = _joined(hits, left_out)
        kinds = [stream.kind for stream in self.plan.streams]
        return [_reading(every, n, ranges_R2[n], kinds, "; ".join(unknown)) for n in range(len(ranges_R2))]

    @staticmethod
    def _draws(blend: Blend, number: int, run: EqualSteps) -> tuple[int, int, int]:
        """Draws of a data set in a run, and those before it and before its end."""
        before, after = (blend.draws_before(number, sample) for sample in (run.begin, run.end))
        return after - before, before, after

    def _hits(self, blend: Blend, number: int, run: EqualSteps, ranges_R2: np.ndarray) -> list[_Hits]:
        _, before, after = self._draws(blend, number, run)
        dataset, found = cast(_Telling, blend.dataset(number)), list[_Hits]()
        for epoch in range(before // len(dataset), (after - 1) // len(dataset) + 1):
            pieces = [
                dataset.rows_with(begin, end, epoch) if begin < end else np.zeros((0, 3), np.int64)
                for begin, end in ranges_R2.tolist()
            ]
            ranges_P = np.repeat(np.arange(len(pieces)), [len(each) for each in pieces])
            rows_P, begins_P, ends_P = np.concatenate([np.zeros((0, 3), np.int64), *pieces]).T
            draws_P = epoch * len(dataset) + blend.order(number, epoch).inverse(rows_P)
            mine = (draws_P >= before) & (draws_P < after)
            steps_P = steps_of(run, blend.places(number, draws_P[mine]))
            which = (run.sequence, number, epoch)
            passed = self._passes.setdefault(which, len(self._passes))
            columns = ranges_P[mine], steps_P, draws_P[mine], begins_P[mine], ends_P[mine]
            found.append(_Hits(*columns, *np.tile([[number], [passed]], len(steps_P))))
        return found

    def consumed(self, start: int, end: int, left_out: Collection[int] = ()) -> dict[str, tuple[int, float]]:
        """By name of a stream in records, the samples and epochs of steps start <= step < end."""
        counts = np.zeros((len(self.plan.streams), 2))
        outside = [(step, step + 1, -1) for step in sorted({*left_out}) if start <= step < end]
        for first, last, sign in [(start, end, 1), *outside]:
            for run in self.plan.runs(first, last):
                blend = self.blend(run.sequence)
                for number in range(len(counts)):
                    count = sign * self._draws(blend, number, run)[0]
                    counts[number] += count, count / len(blend.dataset(number))
        names = [stream.name for stream in self.plan.streams]
        return {name: (int(n), float(epochs)) for name, (n, epochs) in zip(names, counts, strict=True)}

    def disagreement(self, told: Json, start: int, end: int, left_out: Collection[int] = ()) -> str:
        """Why this plan is not what was run, from a model's `summary.consumed` of these steps; '' if they
        agree. Opens every source.
        """
        if not isinstance(told, Mapping) or not told:
            return "its record does not count the samples that it read"
        counted = self.consumed(start, end, left_out)
        if extra := [name for name in told if name not in counted]:
            return f"its record counts samples of {', '.join(extra)}, which the recount does not know"
        for name, (samples, epochs) in counted.items():
            one = told.get(name, {"samples": 0, "epochs": 0.0})
            found = one if isinstance(one, Mapping) else {}
            if (found.get("samples"), found.get("epochs")) != (samples, round(epochs, 6)):
                return (
                    f"{name}: recounted {samples} samples in {epochs:.6f} epochs, its record has"
                    f" {found.get('samples')} in {found.get('epochs')}"
                )
        return ""


def _joined(hits: list[_Hits], left_out: Collection[int]) -> _Hits:
    names = _Hits.__dataclass_fields__
    empty = np.zeros(0, dtype=np.int64)
    every = _Hits(*(np.concatenate([empty, *(getattr(each, name) for each in hits)]) for name in names))
    kept = ~np.isin(every.steps_P, list(left_out))
    order = np.flatnonzero(kept)[np.argsort(every.ranges_P[kept], kind="stable")]
    return _Hits(*(getattr(every, name)[order] for name in names))


def _reading(every: _Hits, number: int, range_2: np.ndarray, kinds: list[str], unknown: str) -> SpanReading:
    mine = slice(*np.searchsorted(every.ranges_P, [number, number + 1]))
    rows, first = np.unique(np.stack([every.streams_P[mine], every.draws_P[mine]]), axis=1, return_index=True)
    steps = np.unique(every.steps_P[mine])
    times: dict[str, int] = {}
    for stream in rows[0].tolist() if len(first) else []:
        times[kinds[stream]] = times.get(kinds[stream], 0) + 1
    return SpanReading(
        times=None if unknown else len(first),
        whole=_whole(every, mine, *range_2.tolist()),
        first=int(steps[0]) if len(steps) else None,
        last=int(steps[-1]) if len(steps) else None,
        steps=tuple(steps[:MOST_STEPS].tolist()),
        num_steps=len(steps),
        kinds=times,
        unknown=unknown,
    )


def _whole(every: _Hits, mine: slice, begin: int, end: int) -> int:
    """The passes whose pieces hold all of a range."""
    passes, begins, ends = every.passes_P[mine], every.begins_P[mine], every.ends_P[mine]
    order, count = np.lexsort([begins, passes]), 0
    reached, at = begin, None
    for each, first, last in zip(
        passes[order].tolist(), begins[order].tolist(), ends[order].tolist(), strict=True
    ):
        if each != at:
            count += at is not None and reached >= end
            reached, at = begin, each
        if first <= reached:
            reached = max(reached, last)
    return count + (at is not None and reached >= end)
