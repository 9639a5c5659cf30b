"""FineWeb's own quality rules (2406.17557, section 3.6), in the order of datatrove's FineWebQualityFilter."""

from collections.abc import Iterator

from atelier.engine.config.filter.fineweb import FineWeb
from atelier.engine.data.filter_text import EMPTY, Check, DocumentText, by_limits, repeated
from atelier.engine.data.splitter import TERMINAL

_ENDS = frozenset(TERMINAL)


def build(spec: FineWeb) -> Check:
    def measures(text: DocumentText) -> Iterator[tuple[str, float]]:
        lines = [line for line in text.filled_lines if not line.isspace()]
        yield EMPTY, not lines
        yield "min_punctuated_lines", sum(line[-1] in _ENDS for line in lines) / len(lines)
        yield "max_short_lines", sum(len(line) <= spec.short_line_chars for line in lines) / len(lines)
        newlines = text.text.count("\n")
        yield "max_duplicate_line_chars", repeated(lines)[1] / (len(text.text) - newlines)
        yield "max_newlines", newlines / max(1, len(text.words))

    return by_limits(spec, measures)
