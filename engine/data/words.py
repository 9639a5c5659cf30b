"""Which tokens of a row belong together: whole words, identifiers, capitalised names, known phrases.

Told from the bytes of the vocabulary alone, for whole batches at once; no text is decoded.

Shape letters: B rows, T tokens of a row, V vocabulary, W words of all rows together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atelier.engine.data.permute import mixed
from atelier.engine.data.vocabulary import Vocabulary

LONGEST = 16  # tokens of a word; longer runs (scripts without spaces, base64) are cut
MOST = 4  # words of a unit
_JOINERS, _SPACE = b"._", b" \t\n\r\x0b\x0c"


def is_word_byte(byte: int) -> bool:
    """Letters, digits, and every byte of a character beyond ASCII."""
    return byte >= 0x80 or bytes([byte]).isalnum()


class Spelling:
    """What the tokens of a vocabulary look like, [V] bool each."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [vocabulary.bytes_of([n]) for n in range(vocabulary.size)]
        bare = [token.lstrip(_SPACE) for token in tokens]

        def table(holds: Callable[[int], bool]) -> np.ndarray:
            return np.array([holds(n) for n in range(len(tokens))], dtype=bool)

        self.ordinary_V = table(lambda n: bool(tokens[n]))  # stands for text: not a special token
        self.is_blank_V = table(lambda n: not bare[n])  # white space or nothing
        self.is_first_V = table(lambda n: bool(tokens[n]) and is_word_byte(tokens[n][0]))
        self.is_last_V = table(lambda n: bool(tokens[n]) and is_word_byte(tokens[n][-1]))
        self.is_spaced_V = table(lambda n: tokens[n][:1] == b" " and is_word_byte((bare[n] or b" ")[0]))
        self.is_capital_V = table(lambda n: bare[n][:1].isupper())
        self.is_joiner_V = table(lambda n: 0 < len(bare[n]) <= 3 and not bare[n].strip(_JOINERS))
        self.is_joined_V = self.is_joiner_V & table(lambda n: tokens[n] == bare[n])  # no space before it
        # an underscore before a word, also behind a bracket or a dot, and one at its end
        self.is_score_V = table(lambda n: bare[n][-1:] == b"_") | (
            self.is_joiner_V & table(lambda n: b"_" in bare[n])
        )
        self.is_tail_V = table(lambda n: tokens[n][:1] == b"_")
        self.is_only_score_V = self.is_joined_V & table(lambda n: not bare[n].strip(b"_"))


@dataclass(frozen=True)
class Words:
    """`words_BT` numbers the words of all rows from 0, every other token being a word of its own."""

    words_BT: np.ndarray
    first_W: np.ndarray  # place of each word's first token in the flattened rows
    is_linked_W: np.ndarray  # by its spelling or as a phrase to the word before it, in the same row


def word_starts(tokens_BT: np.ndarray, spelling: Spelling) -> np.ndarray:
    """[B, T] bool: whether a token begins a word, an identifier (os.path, snake_case) being one word."""
    first_BT, last_BT = spelling.is_first_V[tokens_BT], spelling.is_last_V[tokens_BT]
    # a dot or underscore belongs to the word before it when one follows; an underscore also at its end
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


def find_words(tokens_BT: np.ndarray, spelling: Spelling, phrases: np.ndarray) -> Words:
    """The words of every row, and which are one unit with the word before: runs of capitalised words, and
    pairs whose hash is in `phrases` (sorted uint64); at most four words.
    """
    starts_BT = word_starts(tokens_BT, spelling)
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
    is_linked_W &= _since(~is_linked_W[None])[0] % MOST != 0
    return Words((np.cumsum(starts_BT) - 1).reshape(tokens_BT.shape), first_W, is_linked_W)


def is_spaced(flat: np.ndarray, first_W: np.ndarray, spelling: Spelling) -> np.ndarray:
    """Whether a word is one space away from the word before it."""
    ends_in_word = np.concatenate([[False], spelling.is_last_V[flat[first_W[1:] - 1]]])
    return ends_in_word[: len(first_W)] & spelling.is_spaced_V[flat[first_W]]


def word_hashes(flat: np.ndarray, first_W: np.ndarray) -> np.ndarray:
    """uint64 of each word, which depends on its tokens and their order."""
    if not len(first_W):
        return np.zeros(0, dtype=np.uint64)
    counts_W = np.diff(np.append(first_W, len(flat)))
    inside = np.arange(len(flat)) - np.repeat(first_W, counts_W)
    return np.add.reduceat(
        mixed(flat.astype(np.uint64) + (inside.astype(np.uint64) << np.uint64(32))), first_W
    )


def pair_hashes(hashes_W: np.ndarray) -> np.ndarray:
    """uint64 of each word with the one before it; 0 for the first."""
    pairs_W = np.zeros_like(hashes_W)
    pairs_W[1:] = mixed(hashes_W[:-1] * np.uint64(3) + hashes_W[1:])
    return pairs_W


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    """Along the last axis, False coming in."""
    result = np.zeros_like(values)
    if by > 0:
        result[..., by:] = values[..., :-by]
    else:
        result[..., :by] = values[..., -by:]
    return result


def _since(starts_BT: np.ndarray) -> np.ndarray:
    """How many places each is behind the last start of its row."""
    places_T = np.arange(starts_BT.shape[1])
    return places_T - np.maximum.accumulate(np.where(starts_BT, places_T, 0), axis=1)
