"""Triples of sentences that match a pattern, for languages other than English."""

import re
from typing import Literal

from pydantic import Field, field_validator

from atelier.engine.config.taggers import TaggerSpec

NAMES = ("head", "tail")


class SentenceTriples(TaggerSpec):
    kind: Literal["sentences"] = "sentences"
    pattern: str = Field(
        description="regular expression of a sentence's beginning, with the groups (?P<head>...) and"
        " (?P<tail>...)"
    )
    relation: str = Field(default="is a", min_length=1, description="relation of head to tail")

    @field_validator("pattern")
    @classmethod
    def _has_groups(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groupindex
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{pattern!r} is no regular expression ({error})") from None
        for name in NAMES:
            if name not in groups:
                raise ValueError(f"{pattern!r} has no group (?P<{name}>...)")
        return pattern
