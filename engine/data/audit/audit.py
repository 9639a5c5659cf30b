"""The task `audit`: search the texts that reached a model for questions of evaluation sets, and tell which
trainings read them, and when.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np

from atelier.engine.config.audit import (
    KIND,
    RESULT,
    STATUSES,
    AuditConfig,
    AuditedQuestion,
    AuditedSet,
    AuditResult,
    AuditRoute,
    Form,
    RouteReading,
    Status,
    TextOverlap,
    exit_code,
)
from atelier.engine.config.base import Json, parse
from atelier.engine.config.error import AtelierError
from atelier.engine.config.evaluation_set import QuestionLine
from atelier.engine.config.run_file import RunFile
from atelier.engine.data.asked import PosedSet
from atelier.engine.data.audit.documents import CorpusDocument
from atelier.engine.data.audit.part_match import PartMatch
from atelier.engine.data.audit.readings import DocumentSpans, PlannedData, SpanReading
from atelier.engine.data.audit.texts import SearchedText, range_of
from atelier.engine.data.audit.word_index import WordIndex
from atelier.engine.data.corpus import TRAIN
from atelier.engine.data.curation.overlap import LEAST
from atelier.engine.data.curation.word_hashes import find_words
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress, input_of, output_of

AROUND, LONGEST = 60, 400  # characters of an excerpt: on each side of the match, and in all
MOST_OVERLAPS = 20  # listed of a question
QUESTION, ANSWER = "question", "answer"


@dataclass
class QuestionPart:
    """A text of a question that is searched for; `role`: question, answer."""

    set: str
    number: int
    role: str
    text: str


@dataclass
class FoundPlace:
    """A match of a part in an artifact, with the readings of all routes to it."""

    part: QuestionPart
    match: PartMatch
    text: str  # input of the artifact
    document: CorpusDocument
    readings: list[RouteReading] = field(default_factory=list)


class QuestionAudit:
    """The questions of some sets against the texts of a model's routes."""

    def __init__(self, config: AuditConfig, run: RunFile, scratch: Path, progress: Progress) -> None:
        self.config, self._run, self._scratch, self._progress = config, run, scratch, progress
        self._sources: dict[str, ArtifactInput] = {}
        self._vocabularies: dict[str, Vocabulary] = {}
        self.posed = {name: PosedSet.of(input_of(run, f"set.{name}"), scratch) for name in config.sets}
        # text whose readers' steps are unknown is seen: only places in it are unknown
        self.unseen = [
            route.unknown
            for route in config.routes
            if route.unknown and not route.text and not route.is_tokenizer
        ]

    @cached_property
    def parts(self) -> list[QuestionPart]:
        """What is searched for: each part of a question's own words, its answer, and both together where the
        parts alone are too short.
        """
        found = []
        for name, posed in self.posed.items():
            for number, question in enumerate(posed.questions):
                own = [part for part in question["parts"] if _words(part) >= LEAST]
                found += [QuestionPart(name, number, QUESTION, part) for part in own or _together(question)]
                if question["answer_text"] and question["answer_text"] not in question["parts"]:
                    found.append(QuestionPart(name, number, ANSWER, question["answer_text"]))
        return found

    def places(self) -> list[FoundPlace]:
        """All places in the texts of all routes, with their readings."""
        texts = list(dict.fromkeys(route.text for route in self.config.routes if route.text))
        self._progress.start(len(texts), "texts")
        found: list[FoundPlace] = []
        for text in texts:
            try:
                found += self._places_in(text)
            except AtelierError as error:
                self.unseen.append(f"{self._named(text)}: {error}")
            self._progress.advance(1)
        return found

    def _places_in(self, text: str) -> list[FoundPlace]:
        searched = self._searched(text)
        result = searched.found([part.text for part in self.parts])
        documents = searched.some(match.document for match in result.matches)
        found = [
            FoundPlace(
                self.parts[match.part], match._replace(begin=a, end=b), text, documents[match.document]
            )
            for match in result.matches
            for a, b in ((match.begin, match.end), *match.others)
            if a < documents[match.document].size  # else it is also found in the next line
        ]
        ways = [(number, route) for number, route in enumerate(self.config.routes) if route.text == text]
        trained = [(number, route) for number, route in ways if not route.is_tokenizer]
        for number, route in trained or ways[:1]:
            self._read(number, route, found)
        return found

    def _searched(self, text: str) -> SearchedText:
        source = self._source(text)
        index = self.config.indices.get(text)
        opened = WordIndex.open(self._source(index), self._scratch) if index else None
        tokenizers = [
            route.inputs["tokenizer"]
            for route in self.config.routes
            if route.text == text and "tokenizer" in route.inputs
        ]
        vocabulary = self._vocabulary(tokenizers[0]) if tokenizers else None
        return SearchedText(source, self._scratch, index=opened, vocabulary=vocabulary)

    def _read(self, number: int, route: AuditRoute, found: Sequence[FoundPlace]) -> None:
        """Add the readings of a route to the places in its text."""
        trained = [place for place in found if place.match.split == TRAIN]
        for place in found:
            if place.match.split != TRAIN:  # held out: measured, not learned
                place.readings.append(_never(number))
        if not trained:
            return
        if route.plan is None or (route.tokens and "tokenizer" not in route.inputs):
            for place in trained:
                lost = route.unknown or ("" if route.plan is None else "the record of its tokenizer is gone")
                told = _never(number) if route.is_tokenizer else _whole(number, lost)
                place.readings.append(told)
            return
        try:
            readings = self._readings(route, trained)
        except (AtelierError, OSError) as error:
            readings = [(SpanReading(times=None, unknown=str(error)), 0)] * len(trained)
        for place, (reading, after) in zip(trained, readings, strict=True):
            place.readings.append(_told(number, reading, after))

    def _readings(self, route: AuditRoute, places: Sequence[FoundPlace]) -> list[tuple[SpanReading, int]]:
        """Of each place: its reading in the steps that count, and the number of later ones."""
        assert route.plan is not None
        inputs = {key: self._source(name) for key, name in route.inputs.items()}
        data = PlannedData(route.plan, inputs, self._scratch)
        unknown = ""
        if not route.is_recorded:  # derived from identity: is it what was run?
            unknown = data.disagreement(route.consumed, route.start, route.after, route.all_left_out)
        spans = None
        if route.tokens:
            vocabulary = self._vocabulary(route.inputs["tokenizer"])
            spans = DocumentSpans(self._source(route.tokens), vocabulary, self._scratch)
        ranges_R2 = np.array([range_of(each.match, each.document, spans) for each in places], dtype=np.int64)
        if unknown:
            return [(SpanReading(times=None, unknown=unknown), 0)] * len(places)
        counted = data.readings(route.source, ranges_R2, route.start, route.end, route.left_out)
        if route.after <= route.end:
            return [(reading, 0) for reading in counted]
        later = data.readings(route.source, ranges_R2, route.end, route.after, route.all_left_out)
        return [(one, other.times or 0) for one, other in zip(counted, later, strict=True)]

    def _source(self, name: str) -> ArtifactInput:
        if name not in self._sources:
            self._sources[name] = input_of(self._run, name)
        return self._sources[name]

    def _vocabulary(self, name: str) -> Vocabulary:
        if name not in self._vocabularies:
            self._vocabularies[name] = Vocabulary.of(self._source(name), self._scratch)
        return self._vocabularies[name]

    def _named(self, text: str) -> str:
        try:
            record = self._source(text).record
        except AtelierError:
            return text
        return f"{record.kind} {record.name}"

    def result(self, model: str, fingerprint: str) -> AuditResult:
        """The audit of all sets."""
        by_question: dict[tuple[str, int], list[FoundPlace]] = {}
        for place in self.places():
            by_question.setdefault((place.part.set, place.part.number), []).append(place)
        sets = []
        for name, posed in self.posed.items():
            questions = [
                self._judged(question, by_question.get((name, number), []))
                for number, question in enumerate(posed.questions)
            ]
            counts = Counter(question["status"] for question in questions)
            short = sum(0 < _words(question["answer_text"]) < LEAST for question in posed.questions)
            sets.append(
                AuditedSet(
                    name=name,
                    base=posed.settings.name,
                    fingerprint=input_of(self._run, f"set.{name}").record.fingerprint,
                    counts={status: counts[status] for status in STATUSES},
                    answers_too_short=short,
                    questions=[each for each in questions if each["status"] != "clean"],
                )
            )
        return AuditResult(
            model=model,
            fingerprint=fingerprint,
            sets=sets,
            routes=[route.words for route in self.config.routes],
            unseen=list(dict.fromkeys(self.unseen)),
        )

    def _judged(self, question: QuestionLine, places: Sequence[FoundPlace]) -> AuditedQuestion:
        overlaps = [self._overlap(place) for place in _best(places)]
        statuses = {_status([each["times"] for each in overlap["readings"]]) for overlap in overlaps}
        if not overlaps:
            is_told = sum(map(_words, [*question["parts"], question["answer_text"]])) >= LEAST
            statuses = {"unknown"} if self.unseen else {"clean"} if is_told else {"too_short"}
        status: Status = next(each for each in STATUSES if each in statuses)
        if status == "unread" and self.unseen:
            status = "unknown"
        found = AuditedQuestion(id=question["id"], status=status, overlaps=overlaps[:MOST_OVERLAPS])
        if len(overlaps) > MOST_OVERLAPS:
            found["left_out"] = len(overlaps) - MOST_OVERLAPS
        return found

    def _overlap(self, place: FoundPlace) -> TextOverlap:
        match, record = place.match, self._source(place.text).record
        return TextOverlap(
            form="answer" if place.part.role == ANSWER else cast(Form, match.form),
            share=round(match.share, 4),
            artifact=f"{record.name} {record.fingerprint[:8]}",
            kind=record.kind,
            document=match.id,
            split=match.split,
            begin=match.begin,
            end=match.end,
            excerpt=_excerpt(place.document.text, match.begin, match.end),
            readings=place.readings,
        )


def _best(places: Sequence[FoundPlace]) -> list[FoundPlace]:
    """One place for each document: one that was read before others, the question before the answer, then the
    part with the largest share.
    """
    best: dict[tuple[str, int], FoundPlace] = {}
    for place in places:
        key = (place.text, place.match.document)
        if key not in best or _rank(place) > _rank(best[key]):
            best[key] = place
    return sorted(best.values(), key=lambda place: -max((each["times"] or 0) for each in place.readings))


def _rank(place: FoundPlace) -> tuple[int, bool, float, int]:
    severity = -STATUSES.index(_status([each["times"] for each in place.readings]))
    return severity, place.part.role == QUESTION, place.match.share, place.match.words


def _status(times: Sequence[int | None]) -> Status:
    """Of a place, from its readings."""
    if any(times):
        return "read"
    return "unknown" if None in times else "unread"


def _never(route: int) -> RouteReading:
    return RouteReading(route=route, times=0, whole=0, first=None, last=None, after=0)


def _whole(route: int, unknown: str) -> RouteReading:
    """Read as a whole, without steps, such as by a conversion."""
    if unknown:
        return RouteReading(route=route, times=None, whole=0, first=None, last=None, after=0, unknown=unknown)
    return RouteReading(route=route, times=1, whole=1, first=None, last=None, after=0)


def _told(route: int, reading: SpanReading, after: int) -> RouteReading:
    found = RouteReading(
        route=route,
        times=reading.times,
        whole=reading.whole,
        first=reading.first,
        last=reading.last,
        after=after,
    )
    if reading.unknown:
        found["unknown"] = reading.unknown
    return found


def _together(question: QuestionLine) -> list[str]:
    """A question whose parts are too short alone, with its answer: as it is asked, from its first own word
    on, and without the template's words.
    """
    asked = question["context"] or next(iter(question.get("contexts", [])), "")
    options, answer = question["options"], question["answer_text"]
    found = sorted((asked.find(part), part) for part in question["parts"] if part in asked)
    begin = found[0][0] if found else 0
    right = options[question["answer"]] if options else f" {answer}"
    plain = " ".join([*(part for _, part in found), answer])
    return list(dict.fromkeys([asked[begin:] + right, plain]))


def _words(text: str) -> int:
    return len(find_words(text).hash_W)


def _excerpt(text: str, begin: int, end: int) -> str:
    """The match with some text around it, on one line."""
    end = min(end, begin + LONGEST - 2 * AROUND)
    before, after = max(0, begin - AROUND), min(len(text), end + AROUND)
    shown = " ".join(text[before:after].split())
    return f"{'...' if before else ''}{shown}{'...' if after < len(text) else ''}"


def audit(run: RunFile, scratch: Path, progress: Progress) -> tuple[ArtifactOutput, dict[str, Json]]:
    """Write audit.json. Returns the output, and the questions by status as its summary."""
    config, output = parse(AuditConfig, run.config, "config"), output_of(run, KIND)
    record = input_of(run, "model").record
    result = QuestionAudit(config, run, scratch, progress).result(record.name, record.fingerprint)
    output.add_json(RESULT, cast(Json, result))
    counts = {status: sum(each["counts"][status] for each in result["sets"]) for status in STATUSES}
    return output, {**counts, "unseen": len(result["unseen"]), "exit_code": exit_code(result)}
