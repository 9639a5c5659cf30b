"""Where sentences end, told from the bytes of the vocabulary: after . ! ? before a space, after their wide
forms, and at the end of a line (which for code is a statement, mostly).

Shape letters: V vocabulary, N tokens in a row.
"""

import numpy as np

from atelier.engine.data.vocabulary import Vocabulary

_CLOSING = b"\"')]}`"
_WIDE = tuple(mark.encode() for mark in "。！？")


class Sentences:
    """What the tokens of a vocabulary say of sentences, [V] bool each."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [vocabulary.bytes_of([n]) for n in range(vocabulary.size)]
        self._is_stop_V = np.array([t.rstrip(_CLOSING).endswith((b".", b"!", b"?")) for t in tokens])
        self._is_wide_V = np.array([t.endswith(_WIDE) for t in tokens])
        self._is_line_V = np.array([b"\n" in t for t in tokens])
        self._is_spaced_V = np.array([t[:1] == b" " for t in tokens])
        self._is_blank_V = np.array([bool(t) and t.isspace() for t in tokens])

    def ends(self, tokens_N: np.ndarray) -> np.ndarray:
        """The places 1 .. N - 1 before which a sentence ends; white space goes with what stands before it."""
        is_blank = self._is_blank_V[tokens_N]
        places = np.arange(len(tokens_N))
        # the last token before each place that is not white space alone, and the ends of lines from there on
        last = np.maximum.accumulate(np.where(is_blank, 0, places))[:-1]
        lines = np.cumsum(self._is_line_V[tokens_N])
        num_lines = lines[:-1] - np.where(last > 0, lines[last - 1], 0)
        before, after = tokens_N[last], tokens_N[1:]
        is_spaced = (last < places[:-1]) | self._is_spaced_V[after]
        ends = (self._is_stop_V[before] & is_spaced) | self._is_wide_V[before] | (num_lines > 0)
        return np.flatnonzero(ends & ~is_blank[1:]) + 1

    def whole(self, ids: list[int], prefix: int) -> list[int]:
        """Ids that were cut somewhere, without their last, unfinished sentence, unless that would be most of
        what stands behind the first `prefix` ids.
        """
        least = prefix + (len(ids) - prefix) // 2
        cuts = [cut for cut in self.ends(np.array(ids)).tolist() if cut >= least]
        return ids[: cuts[-1]] if cuts else ids
