"""A document's text as filters read it, with its words and lines split once for all of them, and the checks
that filters are.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

from atelier.engine.config.filters import FilterSpec
from atelier.engine.config.kind_files import kind_module
from atelier.engine.data.splitter import OWN, Splitter, SplitWords

EMPTY = "empty"  # rule that refuses a document without text
_LINE = re.compile(r"[^\n]+")


class RefusedText(NamedTuple):
    """Why a document is refused. `reason`: kind and field of the rule, such as gopher_quality.min_words.
    `numbers`: the `measured` value and the `limit`.
    """

    reason: str
    numbers: dict[str, float]


class DocumentText:
    """A document's text, with everything that several filters read. `key`: of the document, for draws."""

    def __init__(self, text: str, key: str = "", splitter: Splitter = OWN) -> None:
        self.text = text
        self._key, self._splitter = key, splitter

    @cached_property
    def key(self) -> str:
        """The given key, else the text's sha256."""
        return self._key or hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest()

    @cached_property
    def words(self) -> SplitWords:
        return SplitWords(self._splitter.words(self.text))

    @cached_property
    def lines(self) -> list[str]:
        """The lines, separated by anything that Unicode calls a line end; empty ones too."""
        return self.text.splitlines()

    @cached_property
    def filled_lines(self) -> list[str]:
        """The runs of characters between newlines; none is empty."""
        return _LINE.findall(self.text)

    def sentences(self, line: str) -> int:
        """The number of sentences in a line of this text, which is not blank."""
        return self._splitter.sentences(line)


Check = Callable[[DocumentText], RefusedText | None]
# the values of a filter's rules by field, in the order of the rules, each computed when it is asked for
Measures = Callable[[DocumentText], Iterator[tuple[str, float]]]


def check_of(spec: FilterSpec, folders: Mapping[str, Path] | None = None) -> Check:
    """The check that engine/data/filter/<kind>.py builds. `folders`: of the artifacts that filters need.
    Raises ConfigError if it lacks something.
    """
    build = cast(Callable[..., Check], kind_module("data/filter", spec.kind, "build").build)
    return build(spec, *((folders or {})[name] for name in spec.needs))


def by_limits(spec: FilterSpec, measures: Measures) -> Check:
    """A check that refuses at the first value outside its field's limit: below a `min_`, above a `max_`. A
    limit of 0 is off. A document without text is refused by a value `EMPTY`, which has no field.
    """
    limits = {name: value for name, value in spec if name.startswith(("min_", "max_"))} | {EMPTY: 0.0}
    kind = spec.kind

    def check(text: DocumentText) -> RefusedText | None:
        for name, value in measures(text):
            limit = limits[name]
            if value < limit if name.startswith("min_") else value > limit and (limit or name == EMPTY):
                return RefusedText(f"{kind}.{name}", {"measured": float(value), "limit": float(limit)})
        return None

    return check


def repeated(parts: Iterable[str]) -> tuple[int, int]:
    """The number of parts that repeat an earlier one, and their characters."""
    seen: set[str] = set()
    count = chars = 0
    for part in parts:
        if part in seen:
            count += 1
            chars += len(part)
        else:
            seen.add(part)
    return count, chars
