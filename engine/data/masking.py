"""Mask whole units of a row for prediction: 80 % become <|mask|>, 10 % random tokens, 10 % stay (Devlin et
al. 1810.04805), decided per unit, not per token (ERNIE, 1904.09223).

Shape letters: B rows, T tokens of a row, U units of all rows together, K ordinary tokens.
"""

import numpy as np

from atelier.engine.config.batch import NOT_SCORED
from atelier.engine.data.counter_rng import below, uniform

MASKED, REPLACED = 0.8, 0.1
_ORDER, _ACTION, _TOKEN = 1, 2, 3  # lanes


def hide(
    tokens_BT: np.ndarray,
    units_BT: np.ndarray,
    targets_B: np.ndarray,
    keys_B: np.ndarray,
    mask: int,
    ordinary_K: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and labels [B, T], with units hidden until they hold `targets_B` tokens of their row.

    `units_BT` numbers units across the batch, each contiguous in one row; -1 = never hidden. Units are taken
    in random order while their middle is below the target, so that the share is right on average for any
    sizes; at least one per row. `keys_B`: the rows' random keys (Chance.keys); `mask`: id of <|mask|>;
    `ordinary_K`: ids for random tokens.
    """
    width = tokens_BT.shape[1]
    flat = units_BT.reshape(-1)
    places = np.flatnonzero(flat >= 0)
    labels_BT = np.full_like(tokens_BT, NOT_SCORED)
    if not len(places):
        return tokens_BT.copy(), labels_BT
    is_first = np.diff(flat[places], prepend=-1) != 0
    unit = np.cumsum(is_first) - 1  # of each place, from 0
    rows_U, at_U = np.divmod(places[is_first], width)
    is_taken_U = _taken(np.bincount(unit), rows_U, at_U, targets_B, keys_B)
    action_U = uniform(keys_B[rows_U], at_U, _ACTION)
    action_U[~is_taken_U] = 1.0
    result_BT = tokens_BT.copy()
    taken = places[is_taken_U[unit]]
    labels_BT.reshape(-1)[taken] = tokens_BT.reshape(-1)[taken]
    result_BT.reshape(-1)[places[action_U[unit] < MASKED]] = mask
    replaced = places[(action_U[unit] >= MASKED) & (action_U[unit] < MASKED + REPLACED)]
    drawn = below(keys_B[replaced // width], replaced % width, _TOKEN, len(ordinary_K))
    result_BT.reshape(-1)[replaced] = ordinary_K[drawn]
    return result_BT, labels_BT


def _taken(
    sizes_U: np.ndarray, rows_U: np.ndarray, at_U: np.ndarray, targets_B: np.ndarray, keys_B: np.ndarray
) -> np.ndarray:
    order_U = np.lexsort((uniform(keys_B[rows_U], at_U, _ORDER), rows_U))
    sizes, rows = sizes_U[order_U], rows_U[order_U]  # rows stay ascending
    before = np.cumsum(sizes) - sizes
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    before -= np.repeat(before[begins], np.diff(np.append(begins, len(rows))))
    is_taken_U = np.empty(len(rows), dtype=bool)
    is_taken_U[order_U] = (before == 0) | (before + sizes / 2 <= targets_B[rows])
    return is_taken_U
