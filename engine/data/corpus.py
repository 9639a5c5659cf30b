"""Documents of finished corpora, and their split: a group of documents is for training or held out depending
only on its hash, the share and, in tiny sets, the other groups.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from atelier.engine.config.document import parse_object
from atelier.engine.config.error import DataError
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.shards import shard_lines, shard_names

DOCUMENTS = "documents.jsonl"


class CorpusLine(TypedDict):
    """A line of documents.jsonl. Documents of one `group` are in one split, "train" or "held_out". `cut`: the
    document continues after this line, so it has no end here. A long document may be several lines, `<id>#1`
    and so on, all but the last `cut`.
    """

    id: str
    text: str
    split: str
    group: str
    cut: NotRequired[bool]


class LabelledLine(TypedDict):
    """A line of train.jsonl or test.jsonl: `completion` is one of the `options`, equal in all lines; or free
    text, without options.
    """

    prompt: str
    completion: str
    options: list[str]
    group: str


def corpus_lines(corpus: ArtifactInput, scratch: Path) -> Iterator[CorpusLine]:
    """The documents of a corpus, in order."""
    shards = shard_names(corpus)
    for name in shards:
        yield from (cast(CorpusLine, line) for line in shard_lines(corpus, name, scratch))
    if shards:
        return
    path = corpus.file(DOCUMENTS, scratch)
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            yield cast(CorpusLine, parse_object(line, f"{path}, line {number}"))


def documents_file(corpus: ArtifactInput, scratch: Path) -> Path:
    """A local file of the documents of a corpus, one a line; shards are unpacked into `scratch`."""
    if not shard_names(corpus):
        return corpus.file(DOCUMENTS, scratch)
    path = scratch / corpus.record.fingerprint[:16] / DOCUMENTS
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for line in corpus_lines(corpus, scratch):
            file.write(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n")
    return path


TRAIN, HELD_OUT = "train", "held_out"


def fraction(group: str) -> float:
    """The sha256 of the group as a number in [0, 1)."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:6], "big") / 2.0**48


def split_of(groups: Iterable[str], held_out: float, place: str) -> dict[str, str]:
    """The split of each group: held out if its fraction is below `held_out`.

    Each side gets at least one group: if hashes leave a side empty, the group of smallest hash is held out or
    the one of largest hash trains. Raises DataError for fewer than two groups.
    """
    order = sorted(set(groups), key=lambda group: (fraction(group), group))
    if len(order) < 2:
        raise DataError(
            f"{place}: {len(order)} distinct text(s), but at least two are needed, one to train on and one"
            " held out (blanks and line ends do not count); add files or longer ones, or give one document"
            " per line as .jsonl"
        )
    splits = {group: HELD_OUT if fraction(group) < held_out else TRAIN for group in order}
    splits[order[0]], splits[order[-1]] = HELD_OUT, TRAIN
    return splits


TRIPLES = "triples.jsonl"
