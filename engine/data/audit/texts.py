"""The texts of artifacts that models learn from, as documents that can be searched for questions; and where
each is in the ranges that trainings read (readings.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

from atelier.engine.config.error import DataError
from atelier.engine.data.attributes import ATTRIBUTES
from atelier.engine.data.audit.documents import CorpusDocument, documents_of
from atelier.engine.data.audit.part_match import FoundParts, PartMatch, scan
from atelier.engine.data.audit.readings import DocumentSpans
from atelier.engine.data.audit.word_index import WordIndex
from atelier.engine.data.corpus import HELD_OUT, TRAIN, corpus_lines
from atelier.engine.data.datasets.natural import IMITATIONS, SIDES
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

LINES = {"triples": "triples.jsonl", "attributes": ATTRIBUTES}


class SearchedText:
    """An artifact with text. `index`: of the words of a corpus, if there is one; `vocabulary`: of ids, if it
    has no text.
    """

    def __init__(
        self, source: ArtifactInput, scratch: Path, index: WordIndex | None, vocabulary: Vocabulary | None
    ) -> None:
        self.source, self._scratch, self._index, self._vocabulary = source, scratch, index, vocabulary
        self.kind = source.record.kind

    def found(self, parts: list[str]) -> FoundParts:
        """Where parts of questions lie."""
        if self._index is not None:
            return self._index.matches(parts, self.source, self._scratch)
        return scan(self.documents(), parts)

    def some(self, places: Iterable[int]) -> dict[int, CorpusDocument]:
        """The documents at these lines."""
        wanted = sorted(set(places))
        if self._index is not None:
            return {each.place: each for each in self._index.documents(self.source, self._scratch, wanted)}
        kept = set(wanted)
        return {each.place: each for each in self.documents() if each.place in kept}

    def documents(self) -> Iterator[CorpusDocument]:
        """All documents. Of labels: prompt and completion of each line; of imitations: both paragraphs."""
        if self.kind == "corpus":
            return documents_of(corpus_lines(self.source, self._scratch))
        return self._of_texts(self._texts())

    def _of_texts(self, texts: Iterable[tuple[str, str, str]]) -> Iterator[CorpusDocument]:
        counts = {TRAIN: 0, HELD_OUT: 0}
        for place, (split, name, text) in enumerate(texts):
            yield CorpusDocument(place, split, counts[split], name, text, len(text))
            counts[split] += 1

    def _texts(self) -> Iterator[tuple[str, str, str]]:
        """Split, name and text, in the order in which trainings number them."""
        if self.kind == "labels":
            for split, file in ((TRAIN, "train.jsonl"), (HELD_OUT, "test.jsonl")):
                for number, line in enumerate(self._lines(file)):
                    yield split, f"{file}, line {number + 1}", f"{line['prompt']}{line['completion']}"
        elif self.kind == "chats":
            for split in (TRAIN, HELD_OUT):
                text = TokenText(self.source, self._scratch, split)
                for number, (begin, end) in enumerate(zip(text.begins_D, text.ends_D, strict=True)):
                    yield split, f"{split} {number + 1}", self._decoded(text.tokens_N[begin:end].tolist())
        elif self.kind == "imitations":
            for number, line in enumerate(self._lines(IMITATIONS)):
                for side in SIDES:
                    name = f"line {number + 1}, {side}"
                    yield str(line["split"]), name, self._decoded(cast(list[int], line[side]))
        elif self.kind in LINES:
            file = LINES[self.kind]
            for number, line in enumerate(self._lines(file)):
                yield str(line["split"]), f"line {number + 1}", str(line["text"])
        else:
            raise DataError(f"{self.source.url}: texts of kind {self.kind} are not known to an audit")

    def _lines(self, file: str) -> list[Mapping[str, object]]:
        if file not in self.source.names():
            return []
        return cast(list[Mapping[str, object]], self.source.lines(file, self._scratch))

    def _decoded(self, ids: list[int]) -> str:
        if self._vocabulary is None:
            raise DataError(f"{self.source.url}: its ids cannot be read without their tokenizer")
        return self._vocabulary.decode(ids)


def range_of(match: PartMatch, document: CorpusDocument, spans: DocumentSpans | None) -> tuple[int, int]:
    """The range of a match in its source, as trainings number them: tokens of a corpus, lines of others."""
    if spans is None:
        return match.number, match.number + 1
    own = document.text[: document.size]
    found = spans.characters(match.number, own, match.begin, min(match.end, document.size))
    end = found.end
    if match.end > document.size:  # the document was cut: the rest begins the next line
        rest = spans.characters(match.number + 1, "", 0, 0)
        end = min(rest.end, rest.begin + spans.size(document.text[document.size : match.end]))
    return found.begin, max(end, found.begin + 1)
