"""Recount when a training of a store read characters of documents: build every batch, find each row in its
source by its tokens, and the tokens of the characters by decoding the document token by token. It shares no
inverse with the readers of an audit, and no search for texts.
"""

from functools import cache
from pathlib import Path

import numpy as np

from atelier.engine.config.data_plan import DataPlan
from atelier.engine.config.document import whole_of
from atelier.engine.config.record import Record
from atelier.engine.data.audit.readings import PlannedData
from atelier.engine.data.corpus import TRAIN, CorpusLine, corpus_lines
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, open_input
from atelier.infra.report.lineage import Index
from atelier.infra.store.data_plans import recorded_plan
from atelier.infra.store.store import Store

Row = tuple[int, str, int, int]  # step, source, first token, the one after the last


class Recount:
    """A model's training, with its trunk, which read the same stream: rows of windows of one length."""

    def __init__(self, root: Path, model: str, scratch: Path) -> None:
        self._index, self._scratch = Index(Store(str(root))), scratch
        record = self._index.store.resolve(model, "model")
        trajectory = record.parents["trajectory"]
        plan = recorded_plan(self._index.store, trajectory)
        assert plan is not None
        self.plan: DataPlan = plan
        self.last = whole_of(record.identity.get("step"))
        self._parents = {
            key: self._index.records[fp]
            for key, fp in self._index.trajectory_records[trajectory].parents.items()
            if fp in self._index.records
        }
        self.vocabulary = Vocabulary.of(self._opened(self._parents["tokenizer"]), scratch)
        self.text = cache(self._text)
        self.lines = cache(self._lines)
        self.rows = cache(self._rows)

    def _opened(self, record: Record) -> ArtifactInput:
        return open_input(self._index.store.address(record.kind, record.fingerprint))

    def _text(self, source: str) -> TokenText:
        return TokenText(self._opened(self._parents[source]), self._scratch, TRAIN)

    def _lines(self, source: str) -> list[CorpusLine]:
        """The lines of the training split."""
        corpus = self._index.records[self._parents[source].parents["corpus"]]
        return [line for line in corpus_lines(self._opened(corpus), self._scratch) if line["split"] == TRAIN]

    def _rows(self, last: int) -> list[Row]:
        """The rows of all steps before `last`."""
        inputs = {key: self._opened(record) for key, record in self._parents.items()}
        blend = PlannedData(self.plan, inputs, self._scratch).blend(self.plan.sequence)
        size, found = self.plan.global_batch, list[Row]()
        for step in range(last):
            batch = blend.batch(step * size, size)["tokens_BT"]
            for (stream, _), row in zip(blend.samples(step * size, size), batch, strict=True):
                source = self.plan.streams[stream].input
                tokens = self.text(source).tokens_N
                place = tokens.tobytes().find(row.astype(tokens.dtype).tobytes())
                assert place >= 0 and place % tokens.itemsize == 0
                found.append((step, source, place // tokens.itemsize, place // tokens.itemsize + len(row)))
        return found

    def range_of(self, source: str, document: str, begin: int, end: int) -> tuple[int, int] | None:
        """The tokens with these characters of a document; None if it is held out."""
        [number] = [n for n, line in enumerate(self.lines(source)) if line["id"] == document] or [None]
        if number is None:
            return None
        text = self.text(source)
        first, last = int(text.begins_D[number]), int(text.ends_D[number])
        sizes = [len(self.vocabulary.bytes_of([one])) for one in text.tokens_N[first:last].tolist()]
        ends = np.cumsum(sizes)  # bytes: the texts are ASCII
        return first + int(np.searchsorted(ends, begin, "right")), first + int(np.searchsorted(ends, end)) + 1

    def steps(self, source: str, document: str, place: tuple[int, int], start: int, end: int) -> list[int]:
        """Of each row that holds some of the characters in steps start <= step < end, its step."""
        span = self.range_of(source, document, *place)
        if span is None:
            return []
        every = self.rows(end)
        return [
            step
            for step, own, first, last in every
            if own == source and step >= start and first < span[1] and span[0] < last
        ]
