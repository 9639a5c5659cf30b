"""Triples of Python source and of English sentences that begin "X is a Y"."""

from typing import Literal

from atelier.engine.config.taggers import TaggerSpec


class RuleTriples(TaggerSpec):
    kind: Literal["rules"] = "rules"
