"""Gopher's quality rules (2112.11446, appendix A.1.1), in the order of datatrove's GopherQualityFilter.

Shape letters: W words, V distinct words.
"""

from collections.abc import Iterator

import numpy as np

from atelier.engine.config.filter.gopher_quality import GopherQuality
from atelier.engine.data.filter_text import Check, DocumentText, by_limits

_BULLETS, _ELLIPSES = ("•", "-"), ("...", "…")


def build(spec: GopherQuality) -> Check:
    stop_words = frozenset(spec.stop_words)

    def measures(text: DocumentText) -> Iterator[tuple[str, float]]:
        words = text.words
        counts_V = np.where(words.is_symbol_V, 0, words.counts_V)
        spelled = int(counts_V.sum())
        yield "min_words", spelled
        yield "max_words", spelled
        mean = int((counts_V * words.lengths_V).sum()) / max(1, spelled)
        yield "min_mean_word_length", mean
        yield "max_mean_word_length", mean
        all_words = max(1, len(words))
        yield "max_hashes", text.text.count("#") / all_words
        yield "max_ellipses", sum(map(text.text.count, _ELLIPSES)) / all_words
        num_lines = max(1, len(text.lines))
        yield "max_bullet_lines", sum(line.lstrip().startswith(_BULLETS) for line in text.lines) / num_lines
        yield "max_ellipsis_lines", sum(line.rstrip().endswith(_ELLIPSES) for line in text.lines) / num_lines
        yield "min_alphabetic_words", int(words.counts_V[words.is_alphabetic_V].sum()) / all_words
        yield "min_stop_words", sum(word in words.index for word in stop_words)

    return by_limits(spec, measures)
