"""Ask one prompt with many words in it, as in the studies of associations of GPT-3 and MT-NLG (2005.14165,
section 6.2; 2201.11990, section 6).
"""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.evaluation_source import ProbedRow, ProbeSpec

FIELD = re.compile(r"\{(\w+)\}")
TEXTS = ("prompt", "answer", "slice", "group")


class TemplateProbe(ProbeSpec):
    """A question for each case and each combination of `each`. `{name}` in a text is a word of either."""

    kind: Literal["templates"] = "templates"
    prompt: str
    options: tuple[str, ...] = Field(min_length=2)
    values: tuple[float, ...] = Field(
        default=(), description="a number for each option; their expected value is reported"
    )
    answer: str = Field(default="", description="the right option; none with values")
    slice: str = Field(default="", description="part with results of its own")
    group: str = Field(default="", description="questions of one group are variants of each other")
    each: dict[str, tuple[str, ...]] = {}
    cases: tuple[dict[str, str], ...] = ({},)

    def rows(self, of: Sequence[ProbedRow], place: str) -> list[dict[str, Json]]:
        """A row for each case and combination. Raises ConfigError for a field without words."""
        if bool(self.answer) == bool(self.values):
            raise ConfigError(f"{place}.answer", "give either answer or values")
        if self.values and len(self.values) != len(self.options):
            raise ConfigError(f"{place}.values", f"{len(self.values)} for {len(self.options)} options")
        made: list[dict[str, Json]] = []
        for case in self.cases:
            for words in product(*self.each.values()):
                known = {**dict(zip(self.each, words, strict=True)), **case}
                texts = {name: _filled(getattr(self, name), known, f"{place}.{name}") for name in TEXTS}
                options = [_filled(option, known, f"{place}.options") for option in self.options]
                row: dict[str, Json] = {name: text for name, text in texts.items() if text}
                row |= {"id": str(len(made)), "options": list[Json](options)}
                made.append(row | ({"values": list[Json](self.values)} if self.values else {}))
        return made


def _filled(text: str, known: Mapping[str, str], place: str) -> str:
    def word(found: re.Match[str]) -> str:
        if found[1] not in known:
            near = nearest(found[1], known)
            advice = f"did you mean {near}? " if near else ""
            raise ConfigError(
                place, f"{{{found[1]}}} has no words", f"{advice}known: {', '.join(known) or 'none'}"
            )
        return known[found[1]]

    return FIELD.sub(word, text)
