"""Verdicts on the documents of shards: one line for each document that is removed or changed, in the order of
the shard. A stage reads the documents that the stages before it left.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.io.shards import shard_lines

Numbers = dict[str, float]


class DocumentLine(TypedDict):
    """A line of a shard of the task `collect`."""

    id: str
    key: str  # text_group of the text
    text: str
    group: NotRequired[str]
    cut: NotRequired[bool]  # the document continues on the next line
    whole: NotRequired[int]  # UTF-8 bytes of the document of which this is a part


class Verdict(TypedDict):
    """A verdict on document `row` (from 0) of a shard, of `bytes` UTF-8 bytes. `reason`: why it is removed;
    '' if it is kept, changed or in a cluster.
    """

    row: int
    id: str
    bytes: int
    reason: str
    numbers: NotRequired[Numbers]  # measured values and limits
    kept: NotRequired[str]  # a copy: <source>/<id> of the document kept in its place
    chain: NotRequired[list[str]]  # keep=component: how a copy is connected to it
    cluster: NotRequired[str]  # near-copies and documents similar to them; the held-out split never cuts it
    size: NotRequired[int]  # documents of the cluster
    pieces: NotRequired[list[list[int]]]  # [begin, end) in characters that are kept of a document
    overlaps: NotRequired[list[str]]  # the questions that it overlaps with
    dropped: NotRequired[dict[str, int]]  # UTF-8 bytes removed of a kept document, by reason


def verdict_lines(artifact: ArtifactInput, name: str, scratch: Path) -> Iterator[Verdict]:
    """The verdicts of one shard, by ascending row."""
    for line in shard_lines(artifact, name, scratch):
        yield cast(Verdict, line)


def numbered(documents: ArtifactInput, name: str, scratch: Path) -> Iterator[tuple[int, DocumentLine]]:
    """The rows and documents of one shard."""
    for row, line in enumerate(shard_lines(documents, name, scratch)):
        yield row, cast(DocumentLine, line)


def left(
    documents: ArtifactInput, name: str, verdicts: list[tuple[ArtifactInput, str]], scratch: Path
) -> Iterator[tuple[int, DocumentLine, list[Verdict]]]:
    """The documents of a shard that no verdict removes, each with its verdicts. `verdicts`: (artifact, name
    of the shard there).
    """
    sources = [verdict_lines(artifact, shard, scratch) for artifact, shard in verdicts]
    heads = [next(source, None) for source in sources]
    for row, document in numbered(documents, name, scratch):
        own: list[Verdict] = []
        for number, head in enumerate(heads):
            if head is not None and head["row"] == row:
                if head["id"] != document["id"]:
                    raise _other(verdicts[number][0])
                own.append(head)
                heads[number] = next(sources[number], None)
        if not any(verdict["reason"] for verdict in own):
            yield row, document, own
    for number, head in enumerate(heads):
        if head is not None:
            raise _other(verdicts[number][0])


def _other(artifact: ArtifactInput) -> DamageError:
    return DamageError(
        f"{artifact.url}: judges other shards of these documents; remove it, and run the same command again",
        place=artifact.url,
    )


def number_of_shard(name: str) -> str:
    """`00012` of shards/00012.jsonl.zst."""
    return name.rsplit("/", 1)[-1].partition(".")[0]


def line_of(line: Verdict | DocumentLine) -> dict[str, Json]:
    return cast(dict[str, Json], line)
