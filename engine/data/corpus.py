"""Read the documents of finished corpora."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.artifact import Input

DOCUMENTS = "documents.jsonl"


def corpus_lines(corpus: Input, scratch: Path) -> Iterator[dict[str, Any]]:
    """The documents of a corpus in order: {"id", "text", "split", "group"}."""
    with open(corpus.file(DOCUMENTS, scratch), encoding="utf-8", newline="\n") as file:
        for line in file:
            yield json.loads(line)
