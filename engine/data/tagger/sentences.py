"""Triples of sentences that match a pattern."""

import re
from collections.abc import Iterator

from atelier.engine.config.tagger.sentences import SentenceTriples
from atelier.engine.data.triples import Find, Rows, Triple, Warn, sentences


def build(spec: SentenceTriples, rows: Rows, warn: Warn) -> Find:
    pattern = re.compile(spec.pattern)

    def find(name: str, text: str) -> Iterator[Triple]:
        for sentence in sentences(text):
            if (match := pattern.match(sentence)) and match["head"] and match["tail"]:
                yield Triple(match["head"].strip(), spec.relation, match["tail"].strip(), sentence)

    return find
