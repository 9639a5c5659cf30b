"""Refuse documents that are too short or too long. Words are split only if a limit of words is set."""

from collections.abc import Iterator

from atelier.engine.config.filter.length import Length
from atelier.engine.data.filter_text import Check, DocumentText, by_limits


def build(spec: Length) -> Check:
    def measures(text: DocumentText) -> Iterator[tuple[str, float]]:
        yield "min_chars", len(text.text)
        yield "max_chars", len(text.text)
        if spec.min_words or spec.max_words:
            yield "min_words", len(text.words)
            yield "max_words", len(text.words)

    return by_limits(spec, measures)
