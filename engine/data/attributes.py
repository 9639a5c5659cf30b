"""The task `describe`: assign generation attributes (genre, topic, keywords, sentiment) to the paragraphs of
a corpus, for training on control prompts.

Labels of documents come from a file, or from simple rules in place of the classifiers of 2112.12731: genre =
kind of document; topic = package or first folder; keywords = words of highest tf-idf; sentiment = counts with
a small lexicon.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Literal, TypedDict, cast, get_args

from atelier.engine.config.annotations import LABELS, Described
from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError, nearest, printable
from atelier.engine.config.generation import Sentiment
from atelier.engine.config.task.prepare import DescribeConfig
from atelier.engine.data.corpus import CorpusLine, corpus_lines, fraction
from atelier.engine.data.row import Column, fields_of, text_problem
from atelier.engine.data.source_reader import SourceReader
from atelier.engine.data.words_of_text import words_in
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

ATTRIBUTES = "attributes.jsonl"
OTHER = "other"
PLACE = "data.attributes"
PART = re.compile(r"#[1-9][0-9]*\Z")
Words = Callable[[str], list[str]]
POSITIVE = """good great best better fast safe easy simple success successful valid correct true clean
efficient useful support supported available improve improved allow allows enable enabled works"""
NEGATIVE = """error errors fail fails failed failure bad wrong invalid broken unsafe danger dangerous
deprecated warning exception raise raises raised missing unsupported false problem bug cannot never"""


class AttributedParagraph(TypedDict):
    """A line of attributes.jsonl: a paragraph of a document in `split`, with its attributes."""

    genre: str
    topic: str
    keywords: list[str]
    sentiment: Sentiment | Literal[""]
    text: str
    split: str


class DocumentLabels(TypedDict, total=False):
    """The labels of a document that a file gives."""

    genre: str
    topic: str
    keywords: list[str]
    sentiment: Sentiment


def describe(
    config: DescribeConfig, corpus: ArtifactInput, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write attributes.jsonl, one AttributedParagraph per line. Returns the summary.

    Raises DataError if no paragraph has a usable length, for labels of unknown genres or sentiments, and if
    none is of a document of the corpus; if the text has other sources, that is a warning.
    """
    progress.start(int(corpus.record.summary.get("documents", 0)), "documents")
    settings, labels = config.attributes, _labels(config, progress)
    every: list[tuple[AttributedParagraph, list[str] | None]] = []  # with the given keywords
    used, last = set[str](), ""
    for line in corpus_lines(corpus, scratch):
        last = line["id"] if line["id"] in labels else document_of(line["id"])
        label = labels.get(last, DocumentLabels())
        used |= {last} if label else set()
        for text in paragraphs(line["text"], settings):
            every.append((_undescribed(line, text, label, config), label.get("keywords")))
        progress.advance(1)
    if labels and not used:
        unused = (
            f"{PLACE}.source: none of its {len(labels)} labels is of a document of {corpus.record.name},"
            f" whose ids are such as {printable(last)}; {PLACE}.document names the field with the id"
        )
        if config.sources == 1:
            raise DataError(unused)
        progress.warn(unused)
    elif len(used) < len(labels):
        progress.warn(
            f"{PLACE}.source: {len(labels) - len(used)} of {len(labels)} labels are of no document of"
            f" {corpus.record.name}"
        )
    sizes = [len(labels[name].get("keywords", ())) for name in used]
    if num_cut := sum(max(0, size - settings.keywords) for size in sizes):
        progress.warn(
            f"{PLACE}.keywords={settings.keywords}: {num_cut} given keywords of {corpus.record.name} are"
            f" beyond it and left out; {PLACE}.keywords={max(sizes)} keeps all"
        )
    if not every:
        raise DataError(
            f"data.source: no paragraph of {settings.shortest} to {settings.longest} characters; give longer"
            " texts"
        )
    every.sort(key=lambda one: (fraction(one[0]["text"]), one[0]["text"]))
    kept = every[: settings.paragraphs]
    found = [one for one, _ in kept]
    words = words_in(settings.words, scratch)
    _name_topics(found, settings.topics)
    _add_keywords(kept, settings.keywords, words)
    lexicon = [settings.positive or POSITIVE.split(), settings.negative or NEGATIVE.split()]
    for one in found:
        one["sentiment"] = one["sentiment"] or sentiment_of(words(one["text"]), *lexicon)
    text = "".join(json.dumps(one, sort_keys=True, ensure_ascii=False) + "\n" for one in found)
    output.add_bytes(ATTRIBUTES, text.encode())
    labelled: dict[str, Json] = (
        {"labelled_documents": len(used), "keywords_left_out": num_cut} if labels else {}
    )
    return labelled | {
        "paragraphs": len(found),
        "genres": sorted({one["genre"] for one in found}),
        "topics": sorted({one["topic"] for one in found}),
        "sentiments": dict(sorted(Counter(one["sentiment"] for one in found).items())),
    }


def _labels(config: DescribeConfig, progress: Progress) -> dict[str, DocumentLabels]:
    """By document; of several rows of one together. Raises DataError for a row without its document, with no
    or an unknown label, or with another one than a row before.
    """
    settings, found, first = config.attributes, dict[str, DocumentLabels](), dict[str, str]()
    optional = [Column(names=(name,), is_needed=False) for name in LABELS]
    columns = [Column(names=(settings.document,), may_be_number=True), *optional]
    with SourceReader(on_error="stop", place="", progress=progress) as reader:
        for path, expected in config.files:
            for _, where, row in reader.rows(path, expected, columns):
                if isinstance(row.get(settings.document), int):
                    row[settings.document] = str(row[settings.document])
                if problem := text_problem(row, settings.document):
                    raise DataError(f"{where}: {problem}; {PLACE}.document names it")
                name = str(row[settings.document])
                label = _label(row, where, settings.document, config.genres)
                before = found.get(name, DocumentLabels())
                for field in sorted(before.keys() & label.keys()):
                    if before[field] != label[field]:
                        other = f"{field} of {printable(name)} is not that of {first[name]}"
                        raise DataError(f"{where}: {other}; leave one out")
                if label:
                    found[name] = cast(DocumentLabels, before | label)
                    first.setdefault(name, where)
    return found


def _label(row: dict[str, Json], where: str, document: str, genres: tuple[str, ...]) -> DocumentLabels:
    """The row's labels; a field that is null is none."""
    label = DocumentLabels()
    unknown = [field for field in row if field not in (document, *LABELS)]
    meant = {field: field.strip().lower() for field in unknown}
    wrong = next((field for field in unknown if meant[field] in LABELS), None)
    if wrong is not None:
        raise DataError(f"{where}: field {printable(wrong)!r} is no label; did you mean {meant[wrong]}?")
    if not row.keys() & {*LABELS}:
        near = next(filter(None, (nearest(field, LABELS) for field in meant.values())), "")
        raise DataError(
            f"{where}: has none of the labels {', '.join(LABELS)}; fields there: {fields_of(row)}"
            + (f"; did you mean {near}?" if near else "")
        )
    if isinstance(words := row.get("keywords"), str):
        row["keywords"] = [word.strip() for word in words.split(",") if word.strip()]
    for name, known in (("genre", genres), ("topic", ()), ("sentiment", get_args(Sentiment))):
        value = row.get(name)
        if value is None:
            continue
        problem = text_problem(row, name)
        if problem or not str(value).strip():
            raise DataError(f"{where}: {problem or f'field {name!r} is empty; leave it out for the rules'}")
        if known and value not in known:
            raise DataError(f"{where}: {name} {printable(str(value))!r} is {_unknown(str(value), known)}")
        label = cast(DocumentLabels, label | {name: value})
    words = row.get("keywords")
    if words is not None:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{where}: field 'keywords' is no list of texts")
        label["keywords"] = [str(word) for word in words]
    return label


def _unknown(name: str, known: tuple[str, ...]) -> str:
    near = nearest(name, known)
    return f"none of {', '.join(known)}" + (f"; did you mean {near}?" if near else "")


def _undescribed(
    line: CorpusLine, text: str, label: DocumentLabels, config: DescribeConfig
) -> AttributedParagraph:
    """A paragraph with its document's attributes; keywords and sentiment that are not given are added if it
    is kept. Raises DataError for a genre by rules that no model has.
    """
    genre = label.get("genre") or config.genre or genre_of(line["id"])
    if genre not in config.genres:
        raise DataError(
            f"{printable(line['id'])} has no label with a genre, and by rules it is {genre}, which is"
            f" {_unknown(genre, config.genres)}; label it, or give {PLACE}.genre.<source>"
        )
    return {
        "genre": genre, "topic": label.get("topic") or topic_of(line["id"]),
        "keywords": [], "sentiment": label.get("sentiment", ""), "text": text,
        "split": line["split"],
    }  # fmt: skip


def document_of(line: str) -> str:
    """The id of the document of which this is the id of a line, perhaps of a part (`<id>#2`)."""
    return PART.sub("", line)


def paragraphs(text: str, settings: Described) -> list[str]:
    """The parts between blank lines of `shortest` to `longest` characters."""
    parts = (part.strip("\n") for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if settings.shortest <= len(part) <= settings.longest]


def genre_of(name: str) -> str:
    """The kind of a document by its id: code, documentation, a line of a file, or text."""
    if name.endswith(".py"):
        return "test" if "test" in name else "code"
    kind, _, rest = name.partition(":")
    if not rest:
        return "prose"
    return "documentation" if kind == "builtin" or kind.endswith(".py") else "line"


def topic_of(name: str) -> str:
    """The first folder of a document's id, or its own name."""
    path = PurePosixPath(name.rpartition(":")[2] if name.endswith(".py") else name.partition(":")[0])
    first = path.parts[0] if path.parts else OTHER
    return PurePosixPath(first).stem


def _name_topics(found: list[AttributedParagraph], most: int) -> None:
    """Keep the most frequent topics; others become `other`."""
    counts = Counter(one["topic"] for one in found)
    kept = {topic for topic, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]}
    for one in found:
        one["topic"] = one["topic"] if one["topic"] in kept else OTHER


def _add_keywords(kept: list[tuple[AttributedParagraph, list[str] | None]], most: int, words: Words) -> None:
    """Those given for each paragraph, perhaps none; without (None) its words of highest tf-idf."""
    counted = [Counter(words(one["text"])) for one, _ in kept]
    documents = Counter(word for counts in counted for word in counts)
    for (one, given), counts in zip(kept, counted, strict=True):
        weights = {word: n * math.log(len(kept) / documents[word]) for word, n in counts.items()}
        best = sorted(weights, key=lambda word: (-weights[word], word))
        one["keywords"] = (best if given is None else given)[:most]


def sentiment_of(words: list[str], positive: Iterable[str], negative: Iterable[str]) -> Sentiment:
    """The lexicon whose words are more frequent among `words`."""
    counts = Counter(word.lower() for word in words)
    score = sum(counts[word] for word in positive) - sum(counts[word] for word in negative)
    return "positive" if score > 0 else "negative" if score < 0 else "neutral"
