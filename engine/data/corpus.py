"""Read the documents of finished corpora."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atelier.engine.artifact import Input
from atelier.engine.spec.document import parse_object

DOCUMENTS = "documents.jsonl"


def corpus_lines(corpus: Input, scratch: Path) -> Iterator[dict[str, Any]]:
    """The documents of a corpus in order: {"id", "text", "split", "group"}."""
    path = corpus.file(DOCUMENTS, scratch)
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            yield parse_object(line, f"{path}, line {number}")
