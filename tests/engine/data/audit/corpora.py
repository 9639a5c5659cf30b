"""Corpora and questions drawn from a seed, and a search in them by comparing all words."""

import io
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from atelier.engine.data.audit.documents import CorpusDocument
from atelier.engine.data.audit.index_words import index_words
from atelier.engine.data.audit.kept_runs import WINDOW
from atelier.engine.data.corpus import DOCUMENTS, HELD_OUT, TRAIN
from atelier.engine.data.curation.word_hashes import marked_words, spelling, unmarked_words
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput
from atelier.engine.io.process import Progress
from atelier.engine.io.shards import ShardWriter
from tests.engine.data.conftest import Workshop
from tests.engine.data.curation.texts import han, words

FEW = [f"w{n}" for n in range(4)]  # words of texts that repeat their runs
STRANGE = ["Straße", "ΣΊΣΥΦΟΣ", "İstanbul", "cafe\u0301", "привет", "ﬁn", "Ǆ", "snake_case", "x2", "น้ำ"]
MARKS = ["<b>{}</b>", "*{}*", "_{}_", "**{}**", "{}<br/>", "caf&eacute; {}", '<a href="x y">{}</a>', "{}，"]


def tokens(rng: np.random.Generator, count: int) -> list[str]:
    """Words of many, of few, of several scripts, or Chinese."""
    kind = int(rng.integers(5))
    if kind == 0:
        return han(rng, count)
    some = {1: FEW, 2: STRANGE}.get(kind)
    return words(rng, count) if some is None else [some[n] for n in rng.integers(0, len(some), count)]


def joined(rng: np.random.Generator, own: Sequence[str]) -> str:
    """The words in any case, white space and markup."""
    kind = int(rng.integers(4))
    if kind == 0:
        return " ".join(own)
    marked = [MARKS[int(rng.integers(len(MARKS)))].format(one) if rng.random() < 0.1 else one for one in own]
    between = [" ", "\n", "  ", ", ", "&nbsp;"]
    text = "".join(one + between[int(rng.integers(5 if kind > 1 else 1))] for one in marked)
    return text.upper() if rng.random() < 0.1 and "&" not in text else text


def drawn(seed: int, num_documents: int = 60, num_parts: int = 60) -> tuple[list[str], list[str]]:
    """Documents, and parts of which most share a run of 5 to 40 words with one or two documents. Some
    documents are empty or have a few words.
    """
    rng = np.random.default_rng(seed)
    pieces: list[list[str]] = []
    for _ in range(num_documents):
        size = int(rng.choice([0, 3, 8, 13, 60, 200]))
        pieces.append(list(itertools.chain.from_iterable(tokens(rng, size // 4) for _ in range(4))))
    parts = []
    for _ in range(num_parts):
        own = pieces[int(rng.integers(num_documents))]
        first, size = int(rng.integers(0, max(len(own), 1))), int(rng.integers(5, 40))
        part = own[first : first + size]
        if rng.random() < 0.5:
            part = [*tokens(rng, int(rng.integers(5))), *part, *tokens(rng, int(rng.integers(5)))]
        if rng.random() < 0.3 and len(part) > 3:  # another word
            part[int(rng.integers(len(part)))] = words(rng, 1)[0]
        parts.append(joined(rng, part))
        for _ in range(2):
            other = pieces[int(rng.integers(num_documents))]
            size = len(part) - int(rng.integers(10)) * int(rng.integers(3))
            other[len(other) // 2 : len(other) // 2] = part[: max(size, 0)]
    return [joined(rng, own) for own in pieces], parts


def lines_of(texts: Sequence[str], *, held_out: int = 5, cut: Sequence[int] = ()) -> list[dict]:
    """Lines of a corpus: one in `held_out` is; those `cut` continue."""
    lines = [
        {"id": f"d{n}", "text": text, "split": TRAIN if n % held_out else HELD_OUT, "group": f"g{n}"}
        for n, text in enumerate(texts)
    ]
    return [line | ({"cut": True} if n in cut else {}) for n, line in enumerate(lines)]


def corpus_of(workshop: Workshop, lines: list[dict], num_shards: int = 0) -> ArtifactInput:
    workshop.count += 1
    target = workshop.folder / f"{workshop.count}-corpus"
    output = ArtifactOutput(str(target))
    if not num_shards:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        output.add_bytes(DOCUMENTS, text.encode(errors="surrogatepass"))
    for number in range(num_shards):
        size = -(-len(lines) // num_shards)
        writer = ShardWriter(workshop.folder / "shard.zst")
        for line in lines[number * size : (number + 1) * size]:
            writer.write(line)
        writer.close()
        output.add(f"payload/shards/{number:05d}.jsonl.zst", writer.path)
    output.close({"documents": len(lines)})
    return workshop.publish(target, "corpus")


def index_of(workshop: Workshop, corpus: ArtifactInput, window: int = WINDOW) -> ArtifactInput:
    workshop.count += 1
    target = workshop.folder / f"{workshop.count}-word_index"
    output = ArtifactOutput(str(target))
    output.close(index_words(corpus, output, workshop.folder / "scratch", Progress(io.StringIO()), window))
    return workshop.publish(target, "word_index")


Row = tuple[int, int, int, int]  # part, document, words of the longest shared run, words covered


def compared(documents: Sequence[CorpusDocument], parts: Sequence[str]) -> list[Row]:
    """The matches, by comparing each word of each part with each word of each document."""
    spelled = [spelled_of(part) for part in parts]
    return sorted(
        (n, document.place, *row)
        for document in documents
        for n, own in enumerate(spelled)
        if len(own) >= 8 and (row := _row(own, list(_views(document.text)))) is not None
    )


def spelled_of(text: str) -> list[str]:
    marked = marked_words(text)
    return [spelling(marked.within(n, 1)) for n in range(len(marked.begin_W))]


def _views(text: str) -> Iterator[list[str]]:
    yield spelled_of(text)
    raw = unmarked_words(text)
    if marked_words(text).has_attributes:
        yield [spelling(raw.within(n, 1)) for n in range(len(raw.begin_W))]


def _row(part: list[str], views: list[list[str]]) -> tuple[int, int] | None:
    longest, covered = 0, set[int]()
    for view in views:
        before: dict[int, int] = {}
        for word in view:  # words of the run that ends at each place of the part, and at this word
            now = {n: before.get(n - 1, 0) + 1 for n, own in enumerate(part) if own == word}
            for n, length in now.items():
                longest = max(longest, length)
                if length >= 8:
                    covered.update(range(n - length + 1, n + 1))
            before = now
    return (longest, len(covered)) if longest >= min(len(part), 13) else None


def indices(folder: Path) -> dict[str, bytes]:
    """The files of an index."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in ("record.json", "body.json")
    }
