"""Rows with encoder and decoder inputs, and documents cut into pieces for them.

Shape letters: B rows, T tokens of the decoder, U tokens of the encoder, P pieces of documents.
"""

from collections.abc import Sequence

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.data.tokens import TokenText

Pair = tuple[
    np.ndarray | Sequence[int], np.ndarray | Sequence[int]
]  # input of the encoder, output of the decoder


def paired(pairs: Sequence[Pair], *, lengths: tuple[int, int], start: int, pad: int) -> dict[str, np.ndarray]:
    """Pairs as a padded batch: encoder_* [B, U], tokens, positions, documents and labels [B, T], int64.

    The decoder reads `start`, then its own output; all of it is scored. `lengths`: U and T.
    """
    U, T = lengths
    result = {
        **side("encoder_", "U", [read for read, _ in pairs], U, pad),
        **side("", "T", [[start, *said[:-1]] for _, said in pairs], T, pad),
    }
    labels_BT = np.full((len(pairs), T), NOT_SCORED, dtype=np.int64)
    for row, (_, said) in enumerate(pairs):
        labels_BT[row, : len(said)] = said
    return result | {"labels_BT": labels_BT}


def side(
    prefix: str, dim: str, rows: Sequence[np.ndarray | Sequence[int]], length: int, pad: int
) -> dict[str, np.ndarray]:
    """The tokens, positions and documents of one side, [B, length]; one document per row."""
    sizes_B = np.array([len(row) for row in rows], dtype=np.int64)
    places = np.arange(length)
    is_text = places < sizes_B[:, None]
    tokens = np.full(is_text.shape, pad, dtype=np.int64)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return {
        f"{prefix}tokens_B{dim}": tokens,
        f"{prefix}positions_B{dim}": np.where(is_text, places, 0),
        f"{prefix}documents_B{dim}": np.where(is_text, 0, PADDING),
    }


def cut_into_pieces(text: TokenText, most: int, *, with_end: bool) -> tuple[np.ndarray, np.ndarray]:
    """(where pieces begin [P], their tokens [P]): each document in pieces of `most` tokens and a rest, with
    or without end token.
    """
    sizes_D = text.lengths_D - (0 if with_end else 1)
    counts_D = -(-sizes_D // most)
    owners_P = np.repeat(np.arange(len(sizes_D)), counts_D)
    inside_P = np.arange(len(owners_P)) - np.repeat(np.cumsum(counts_D) - counts_D, counts_D)
    sizes_P = np.minimum(sizes_D[owners_P] - inside_P * most, most)
    return text.begins_D[owners_P] + inside_P * most, sizes_P
