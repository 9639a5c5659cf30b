from typing import Any

import pytest

from atelier.infra.dag import Node, Reference, scheduling, stop_scheduling
from atelier.tasks import index_words as task


class Recorder:
    """A scheduler that only keeps the nodes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def declare(self, node: Node, after: list[Reference]) -> None:
        self.nodes.append(node)


def drawn(name: str = "main", corpus: str = "a" * 64) -> tuple[Reference, Node]:
    recorder = Recorder()
    token = scheduling(recorder)
    try:
        made = task.index_words(
            name, Reference(kind="corpus", fingerprint=corpus, name="books", node="curate")
        )
    finally:
        stop_scheduling(token)
    (node,) = recorder.nodes
    return made, node


def test_the_index_is_an_artifact_whose_parent_is_the_corpus():
    made, node = drawn()
    product: Any = node.products["word_index"]
    assert (made.kind, made.name, made.node) == ("word_index", "books", "index_words")
    assert product.parents == {"corpus": "a" * 64} and node.inputs == {"corpus": ("corpus", "a" * 64)}
    assert node.waits == ("curate",) and node.ranks == 1
    assert drawn("second")[1].name == "index_words-second"


def test_the_index_depends_on_the_corpus_and_the_unicode_version(monkeypatch: pytest.MonkeyPatch):
    first = drawn()[0].fingerprint
    assert drawn()[0].fingerprint == first != drawn(corpus="b" * 64)[0].fingerprint
    monkeypatch.setattr(task, "unidata_version", "1.1.0")
    assert drawn()[0].fingerprint != first
