"""Given triples, each with a sentence that has both its names, compared in Unicode's normal form C."""

from collections import defaultdict
from collections.abc import Iterator
from unicodedata import normalize

from atelier.engine.config.tagger.listed import ListedTriples
from atelier.engine.data.row import Column
from atelier.engine.data.triples import Find, Rows, Triple, Warn, sentences
from atelier.engine.data.units import is_there

BEGIN = 2  # characters by which heads are looked up


def build(spec: ListedTriples, rows: Rows, warn: Warn) -> Find:
    """`find` takes time in proportion to the text, and to the triples whose heads it has."""
    by_begin: dict[str, set[str]] = defaultdict(set)
    by_head: dict[str, list[tuple[str, str]]] = defaultdict(list)
    columns = [Column(names=(name,)) for name in (spec.head, spec.relation, spec.tail)]
    used, unused = 0, 0
    for row in rows(columns):
        head, relation, tail = (
            normalize("NFC", str(row[name]).strip()) for name in (spec.head, spec.relation, spec.tail)
        )
        if head and tail and head != tail:
            by_begin[head[:BEGIN]].add(head)
            by_head[head].append((relation, tail))
            used += 1
        else:
            unused += 1
    if unused:
        warn(
            f"{unused} of {used + unused} rows give no triple: {spec.head} or {spec.tail} is blank, or both"
            " are equal"
        )

    def find(name: str, text: str) -> Iterator[Triple]:
        for said in sentences(text):
            sentence = normalize("NFC", said)
            heads = {
                head
                for at in range(len(sentence))
                for size in range(1, BEGIN + 1)
                for head in by_begin.get(sentence[at : at + size], ())
                if is_there(head, sentence, at)
            }
            for head in sorted(heads):
                for relation, tail in by_head[head]:
                    if has(tail, sentence):
                        yield Triple(head, relation, tail, said)

    return find


def has(name: str, sentence: str) -> bool:
    """Whether a sentence has this name, not as a part of a longer word."""
    at = sentence.find(name)
    while at >= 0:
        if is_there(name, sentence, at):
            return True
        at = sentence.find(name, at + 1)
    return False
