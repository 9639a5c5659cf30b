"""The task `describe`: assign generation attributes (genre, topic, keywords, sentiment) to the paragraphs of
a corpus, for training on control prompts.

Simple rules replace the classifiers of 2112.12731: genre = kind of document; topic = package or first folder;
keywords = words of highest tf-idf; sentiment = counts with a small lexicon.
"""

import json
import math
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypedDict

from atelier.engine.config.base import Json
from atelier.engine.config.error import DataError
from atelier.engine.data.corpus import CorpusLine, corpus_lines, fraction
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress

if TYPE_CHECKING:
    from atelier.engine.config.generation import Sentiment

ATTRIBUTES = "attributes.jsonl"
SHORTEST, LONGEST = 60, 2000  # characters per paragraph
MOST = 20_000  # paragraphs kept, chosen by hash
TOPICS, KEYWORDS = 25, 3
OTHER = "other"
_WORD = re.compile(r"[A-Za-z_]{4,}")
POSITIVE = """good great best better fast safe easy simple success successful valid correct true clean
efficient useful support supported available improve improved allow allows enable enabled works"""
NEGATIVE = """error errors fail fails failed failure bad wrong invalid broken unsafe danger dangerous
deprecated warning exception raise raises raised missing unsupported false problem bug cannot never"""


class AttributedParagraph(TypedDict):
    """A line of attributes.jsonl: a paragraph of a document in `split`, with its attributes."""

    genre: str
    topic: str
    keywords: list[str]
    sentiment: "Sentiment"
    text: str
    split: str


def describe(
    corpus: ArtifactInput, output: ArtifactOutput, scratch: Path, progress: Progress
) -> dict[str, Json]:
    """Write attributes.jsonl, one AttributedParagraph per line. Returns the summary.

    Raises DataError if no paragraph has a usable length.
    """
    progress.start(int(corpus.record.summary.get("documents", 0)), "documents")
    found: list[AttributedParagraph] = []
    for line in corpus_lines(corpus, scratch):
        found += [_undescribed(line, text) for text in paragraphs(line["text"])]
        progress.advance(1)
    if not found:
        raise DataError(f"data.source: no paragraph of {SHORTEST} to {LONGEST} characters; give longer texts")
    found.sort(key=lambda one: (fraction(one["text"]), one["text"]))
    found = found[:MOST]
    _name_topics(found)
    _add_keywords(found)
    for one in found:
        one["sentiment"] = sentiment_of(one["text"])
    text = "".join(json.dumps(one, sort_keys=True, ensure_ascii=False) + "\n" for one in found)
    output.add_bytes(ATTRIBUTES, text.encode())
    return {
        "paragraphs": len(found),
        "genres": sorted({one["genre"] for one in found}),
        "topics": sorted({one["topic"] for one in found}),
        "sentiments": dict(sorted(Counter(one["sentiment"] for one in found).items())),
    }


def _undescribed(line: CorpusLine, text: str) -> AttributedParagraph:
    """A paragraph with its document's attributes; keywords and sentiment are added if it is kept."""
    return {
        "genre": genre_of(line["id"]), "topic": topic_of(line["id"]), "keywords": [], "sentiment": "neutral",
        "text": text, "split": line["split"],
    }  # fmt: skip


def paragraphs(text: str) -> list[str]:
    """The parts between blank lines of SHORTEST to LONGEST characters."""
    parts = (part.strip("\n") for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if SHORTEST <= len(part) <= LONGEST]


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


def _name_topics(found: list[AttributedParagraph]) -> None:
    """Keep the most frequent topics; others become `other`."""
    counts = Counter(one["topic"] for one in found)
    kept = {topic for topic, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOPICS]}
    for one in found:
        one["topic"] = one["topic"] if one["topic"] in kept else OTHER


def _add_keywords(found: list[AttributedParagraph]) -> None:
    words = [Counter(_WORD.findall(one["text"])) for one in found]
    documents = Counter(word for counts in words for word in counts)
    for one, counts in zip(found, words, strict=True):
        weights = {word: n * math.log(len(found) / documents[word]) for word, n in counts.items()}
        one["keywords"] = sorted(weights, key=lambda word: (-weights[word], word))[:KEYWORDS]


def sentiment_of(text: str) -> "Sentiment":
    """The lexicon whose words are more frequent in `text`, POSITIVE or NEGATIVE."""
    words = Counter(word.lower() for word in _WORD.findall(text))
    score = sum(words[word] for word in POSITIVE.split()) - sum(words[word] for word in NEGATIVE.split())
    return "positive" if score > 0 else "negative" if score < 0 else "neutral"
