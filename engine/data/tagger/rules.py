"""Triples of Python source and of English sentences."""

from atelier.engine.config.tagger.rules import RuleTriples
from atelier.engine.data.triples import Find, Rows, Warn, triples


def build(spec: RuleTriples, rows: Rows, warn: Warn) -> Find:
    return triples
