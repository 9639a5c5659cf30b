"""Rows of unequal length as one padded batch.

Shape letters: B rows, T tokens of a row.
"""

from collections.abc import Sequence

import numpy as np

from atelier.engine.data.windows import NOT_SCORED, PADDING


def packed(rows: Sequence[np.ndarray], length: int, pad: int) -> dict[str, np.ndarray]:
    """Each row one document, seen from both sides, nothing scored: [B, length] int64 and bidirectional_B."""
    sizes_B = np.array([len(row) for row in rows], dtype=np.int64)
    places_T = np.arange(length)
    is_text_BT = places_T < sizes_B[:, None]
    tokens_BT = np.full(is_text_BT.shape, pad, dtype=np.int64)
    tokens_BT[is_text_BT] = np.concatenate(rows) if len(rows) else 0
    return {
        "tokens_BT": tokens_BT,
        "positions_BT": np.where(is_text_BT, places_T, 0),
        "documents_BT": np.where(is_text_BT, 0, PADDING),
        "labels_BT": np.full_like(tokens_BT, NOT_SCORED),
        "bidirectional_B": np.ones_like(sizes_B),
    }
