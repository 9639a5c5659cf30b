"""Ask one prompt with many words in it, as in the studies of associations of GPT-3 (2005.14165) and of MT-NLG
530B (2201.11990).
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, nearest
from atelier.engine.config.evaluation_source import ProbedRow, ProbeSpec

FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
TEXTS = ("prompt", "answer", "slice", "item")
MOST = 100_000  # questions


class TemplateProbe(ProbeSpec):
    """A question for each case and each combination of `each`. `{name}` in a text is a word of either; `{{`
    is a brace.
    """

    kind: Literal["templates"] = "templates"
    prompt: str
    options: tuple[str, ...] = Field(min_length=2)
    values: tuple[float, ...] = Field(
        default=(), description="a number for each option; their expected value is reported"
    )
    answer: str = Field(default="", description="the right option; none with values")
    slice: str = Field(default="", description="part with results of its own")
    item: str = Field(default="", description="questions of one item are one question asked in several ways")
    each: dict[str, tuple[str, ...]] = {}
    cases: tuple[dict[str, str], ...] = ({},)

    def rows(self, of: Sequence[ProbedRow], place: str) -> list[dict[str, Json]]:
        """A row for each case and combination. Raises ConfigError for a field without words, and for words
        without a field.
        """
        if bool(self.answer) == bool(self.values):
            given = "both are given" if self.answer else "neither answer nor values is given"
            raise ConfigError(f"{place}.answer", given, "give answer or values")
        if self.values and len(self.values) != len(self.options):
            problem = f"has {len(self.values)} numbers for {len(self.options)} options"
            raise ConfigError(f"{place}.values", problem, "give one number for each option")
        if (count := len(self.cases) * math.prod(map(len, self.each.values()))) > MOST:
            raise ConfigError(f"{place}.each", f"makes {count:,} questions", f"at most {MOST:,}")
        if both := next((name for case in self.cases for name in case if name in self.each), ""):
            raise ConfigError(f"{place}.each.{both}", "is also in cases", "rename one")
        used = {
            found[1]
            for text in (*(getattr(self, n) for n in TEXTS), *self.options)
            for found in FIELD.finditer(text)
        }
        if unused := next((name for name in self.each if name not in used), ""):
            raise ConfigError(f"{place}.each.{unused}", "stands in no text", f"write {{{unused}}} into one")
        names = sorted(self.each)  # their order in the YAML is no part of the set
        made: list[dict[str, Json]] = []
        for case in self.cases:
            for words in product(*(self.each[name] for name in names)):
                known = {**case, **dict(zip(names, words, strict=True))}
                texts = {name: _filled(getattr(self, name), known, f"{place}.{name}") for name in TEXTS}
                options = [_filled(option, known, f"{place}.options") for option in self.options]
                row: dict[str, Json] = {name: text for name, text in texts.items() if text}
                row |= {"id": str(len(made)), "options": list[Json](options)}
                made.append(row | ({"values": list[Json](self.values)} if self.values else {}))
        return made


def _filled(text: str, known: Mapping[str, str], place: str) -> str:
    def word(found: re.Match[str]) -> str:
        if (name := found[1]) is None:
            return found[0][0]
        if name not in known:
            near = nearest(name, known)
            advice = f"did you mean {near}? " if near else ""
            raise ConfigError(
                place, f"{{{name}}} has no words", f"{advice}known: {', '.join(known) or 'none'}"
            )
        return known[name]

    return FIELD.sub(word, text)
