"""Group tokens into units: whole words, identifiers, capitalised names, sentences, and collocations (pairs of
words that occur together far more often than by chance).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atelier.engine.data.counter_rng import mixed
from atelier.engine.data.tokens import TokenText
from atelier.engine.data.vocabulary import Vocabulary

LONGEST = 16  # tokens per word; longer runs (scripts without spaces, base64) are cut
MOST = 4  # words per unit
_JOINERS, _SPACE = b"._", b" \t\n\r\x0b\x0c"


def is_word_byte(byte: int) -> bool:
    """Whether the byte is a letter, a digit, or part of a character beyond ASCII."""
    return byte >= 0x80 or bytes([byte]).isalnum()


class Spelling:
    """Properties of the spelling of each token of a vocabulary, [V] bool each."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = vocabulary.spellings()
        bare = [token.lstrip(_SPACE) for token in tokens]

        def table(holds: Callable[[int], bool]) -> np.ndarray:
            return np.array([holds(n) for n in range(len(tokens))], dtype=bool)

        self.ordinary_V = table(lambda n: bool(tokens[n]))  # is text, not a special token
        self.is_blank_V = table(lambda n: not bare[n])  # white space or nothing
        self.is_first_V = table(lambda n: bool(tokens[n]) and is_word_byte(tokens[n][0]))
        self.is_last_V = table(lambda n: bool(tokens[n]) and is_word_byte(tokens[n][-1]))
        self.is_spaced_V = table(lambda n: tokens[n][:1] == b" " and is_word_byte((bare[n] or b" ")[0]))
        self.is_capital_V = table(lambda n: bare[n][:1].isupper())
        self.is_joiner_V = table(lambda n: 0 < len(bare[n]) <= 3 and not bare[n].strip(_JOINERS))
        self.is_joined_V = self.is_joiner_V & table(lambda n: tokens[n] == bare[n])  # no space before it
        # an underscore before a word, also after a bracket or dot, and one at its end
        self.is_score_V = table(lambda n: bare[n][-1:] == b"_") | (
            self.is_joiner_V & table(lambda n: b"_" in bare[n])
        )
        self.is_tail_V = table(lambda n: tokens[n][:1] == b"_")
        self.is_only_score_V = self.is_joined_V & table(lambda n: not bare[n].strip(b"_"))


@dataclass(frozen=True)
class Words:
    """The words of a batch. `words_BT` numbers them across all rows, from 0; a token outside words, such as
    punctuation, is its own word.
    """

    words_BT: np.ndarray
    first_W: np.ndarray  # place of each word's first token in the flattened rows
    is_linked_W: np.ndarray  # by spelling or as a phrase, to the word before it in its row


def word_starts(tokens_BT: np.ndarray, spelling: Spelling) -> np.ndarray:
    """[B, T] bool: whether a token begins a word; an identifier (os.path, snake_case) is one word."""
    first_BT, last_BT = spelling.is_first_V[tokens_BT], spelling.is_last_V[tokens_BT]
    # a dot or underscore joins two words; an underscore may also end one
    joined_BT, score_BT = spelling.is_joined_V[tokens_BT], spelling.is_score_V[tokens_BT]
    after_BT, before_BT = _shifted(last_BT, 1), _shifted(first_BT, -1)
    only_BT = spelling.is_only_score_V[tokens_BT]
    is_inner_BT = first_BT & after_BT
    is_joiner_BT = joined_BT & after_BT & (before_BT | only_BT | _shifted(only_BT, -1))
    is_behind_BT = (first_BT | only_BT) & (_shifted(score_BT, 1) | _shifted(is_joiner_BT, 1))
    is_tail_BT = spelling.is_tail_V[tokens_BT] & after_BT
    starts_BT = ~(is_inner_BT | is_joiner_BT | is_behind_BT | is_tail_BT)
    starts_BT[:, :1] = True
    return starts_BT | (_since(starts_BT) % LONGEST == 0)


def find_words(
    tokens_BT: np.ndarray, spelling: Spelling, phrases: np.ndarray, marks_BT: np.ndarray | None = None
) -> Words:
    """The words of every row, and which of them form a unit with the word before: runs of capitalised words,
    and pairs whose hash is in `phrases` (sorted uint64); at most four words. A unit of `marks_BT`
    (engine/data/units.py) is a word, and forms no unit with others.
    """
    starts_BT = word_starts(tokens_BT, spelling)
    if marks_BT is not None:
        is_marked_BT = marks_BT > 0
        starts_BT = np.where(is_marked_BT, marks_BT == 1, starts_BT | _shifted(is_marked_BT, 1))
        starts_BT[:, :1] = True
    first_W = np.flatnonzero(starts_BT)
    flat = tokens_BT.reshape(-1)
    pairs_W = pair_hashes(word_hashes(flat, first_W))
    is_known_W = np.zeros(len(first_W), dtype=bool)
    if len(phrases):
        found = np.minimum(np.searchsorted(phrases, pairs_W), len(phrases) - 1)
        is_known_W = phrases[found] == pairs_W
    capital_W = spelling.is_capital_V[flat[first_W]]
    is_linked_W = is_spaced(flat, first_W, spelling) & (is_known_W | (capital_W & _shifted(capital_W, 1)))
    is_linked_W[first_W % tokens_BT.shape[1] == 0] = False
    if marks_BT is not None:
        is_marked_W = marks_BT.reshape(-1)[first_W] > 0
        is_linked_W &= ~(is_marked_W | _shifted(is_marked_W, 1))
    is_linked_W &= _since(~is_linked_W[None])[0] % MOST != 0
    return Words((np.cumsum(starts_BT) - 1).reshape(tokens_BT.shape), first_W, is_linked_W)


def is_spaced(flat: np.ndarray, first_W: np.ndarray, spelling: Spelling) -> np.ndarray:
    """Whether a word is one space away from the word before it."""
    ends_in_word = np.concatenate([[False], spelling.is_last_V[flat[first_W[1:] - 1]]])
    return ends_in_word[: len(first_W)] & spelling.is_spaced_V[flat[first_W]]


def word_hashes(flat: np.ndarray, first_W: np.ndarray) -> np.ndarray:
    """uint64 hash of each word, over its tokens in order."""
    if not len(first_W):
        return np.zeros(0, dtype=np.uint64)
    counts_W = np.diff(np.append(first_W, len(flat)))
    inside = np.arange(len(flat)) - np.repeat(first_W, counts_W)
    return np.add.reduceat(
        mixed(flat.astype(np.uint64) + (inside.astype(np.uint64) << np.uint64(32))), first_W
    )


def pair_hashes(hashes_W: np.ndarray) -> np.ndarray:
    """uint64 hash of each word with the word before it; 0 for the first."""
    pairs_W = np.zeros_like(hashes_W)
    pairs_W[1:] = mixed(hashes_W[:-1] * np.uint64(3) + hashes_W[1:])
    return pairs_W


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    """Shift along the last axis, filling with False."""
    result = np.zeros_like(values)
    if by > 0:
        result[..., by:] = values[..., :-by]
    else:
        result[..., :by] = values[..., -by:]
    return result


def _since(starts_BT: np.ndarray) -> np.ndarray:
    """The distance of each place from the last start in its row."""
    places_T = np.arange(starts_BT.shape[1])
    return places_T - np.maximum.accumulate(np.where(starts_BT, places_T, 0), axis=1)


_CLOSING = b"\"')]}`"
_WIDE = tuple(mark.encode() for mark in "。！？")


class Sentences:
    """Sentence ends by the spelling of a vocabulary's tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = vocabulary.spellings()
        self._is_stop_V = np.array([t.rstrip(_CLOSING).endswith((b".", b"!", b"?")) for t in tokens])
        self._is_wide_V = np.array([t.endswith(_WIDE) for t in tokens])
        self._is_line_V = np.array([b"\n" in t for t in tokens])
        self._is_spaced_V = np.array([t[:1] == b" " for t in tokens])
        self._is_blank_V = np.array([bool(t) and t.isspace() for t in tokens])

    def ends(self, tokens_N: np.ndarray) -> np.ndarray:
        """The places 1 .. N - 1 before which a sentence ends; white space belongs to the preceding token."""
        is_blank = self._is_blank_V[tokens_N]
        places = np.arange(len(tokens_N))
        # last token before each place that is not only white space, and the line ends from there on
        last = np.maximum.accumulate(np.where(is_blank, 0, places))[:-1]
        lines = np.cumsum(self._is_line_V[tokens_N])
        num_lines = lines[:-1] - np.where(last > 0, lines[last - 1], 0)
        before, after = tokens_N[last], tokens_N[1:]
        is_spaced = (last < places[:-1]) | self._is_spaced_V[after]
        ends = (self._is_stop_V[before] & is_spaced) | self._is_wide_V[before] | (num_lines > 0)
        return np.flatnonzero(ends & ~is_blank[1:]) + 1

    def whole(self, ids: list[int], prefix: int) -> list[int]:
        """Truncated ids without their last, unfinished sentence, unless that would remove most of the ids
        after the first `prefix`.
        """
        least = prefix + (len(ids) - prefix) // 2
        cuts = [cut for cut in self.ends(np.array(ids)).tolist() if cut >= least]
        return ids[: cuts[-1]] if cuts else ids


STRETCHES, STRETCH = 64, 1 << 16  # at most 4M tokens are read, in stretches spread over the text


def find_phrases(text: TokenText, spelling: Spelling, *, count: int, pmi: float) -> np.ndarray:
    """Hashes (sorted uint64) of word pairs, one space apart, seen `count` times or more, whose pointwise
    mutual information log2 p(a b) / (p(a) p(b)) is at least `pmi` bits (Church and Hanks 1990).
    """
    places_N = _places(len(text))
    if len(places_N) < 2:
        return np.zeros(0, dtype=np.uint64)
    flat_N = text.tokens_N[places_N].astype(np.int64)
    first_W = np.flatnonzero(word_starts(flat_N[None], spelling)[0])
    hashes_W = word_hashes(flat_N, first_W)
    pairs = np.flatnonzero(is_spaced(flat_N, first_W, spelling))
    if not len(pairs):
        return np.zeros(0, dtype=np.uint64)
    _, word_W, counts = np.unique(hashes_W, return_inverse=True, return_counts=True)
    found_P, at_P, counts_P = np.unique(pair_hashes(hashes_W)[pairs], return_index=True, return_counts=True)
    expected_P = counts[word_W[pairs[at_P] - 1]] * (counts[word_W[pairs[at_P]]] / len(hashes_W))
    return found_P[(counts_P >= count) & (counts_P >= 2.0**pmi * expected_P)]


def _places(size: int) -> np.ndarray:
    if size <= STRETCHES * STRETCH:
        return np.arange(size)
    begins = np.arange(STRETCHES) * (size - STRETCH) // (STRETCHES - 1)
    return (begins[:, None] + np.arange(STRETCH)).reshape(-1)
