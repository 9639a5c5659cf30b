"""Rows that score several continuations of one prompt in one pass: the prompt is read once.

Shape letters: B rows, T tokens of a row, U tokens of the encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atelier.engine.config.batch import NOT_SCORED, PADDING
from atelier.engine.data.pairs import side


@dataclass(frozen=True, kw_only=True)
class OptionRow:
    """A prompt and all its options in one row, each [T] int64. The score of option k is the sum of log
    p(label) over spans[k].

    Branch 0 is the prompt without its last token; every option's branch repeats that token, so the first
    token of each option is predicted by an ordinary label. With an encoder, which reads `encoder_U`, no token
    is shared: each branch begins like the decoder's text.
    """

    tokens_T: np.ndarray
    positions_T: np.ndarray
    documents_T: np.ndarray
    labels_T: np.ndarray
    branches_T: np.ndarray
    spans: tuple[tuple[int, int], ...]
    answer: int
    encoder_U: np.ndarray | None = None


def option_row(
    prompt: Sequence[int],
    options: Sequence[Sequence[int]],
    answer: int = 0,
    encoder: Sequence[int] | None = None,
) -> OptionRow:
    """The row of a prompt with its options. With an encoder, which reads `encoder`, `prompt` is the first
    token of the decoder's text.
    """
    shared, last = prompt[:-1], prompt[-1:]
    tokens, labels, positions = [*shared], [NOT_SCORED] * len(shared), [*range(len(shared))]
    branches, spans = [0] * len(shared), []
    for branch, option in enumerate(options, start=1):
        spans.append((len(tokens), len(tokens) + len(option)))
        tokens += [*last, *option[:-1]]
        labels += option
        positions += range(len(shared), len(shared) + len(option))
        branches += [branch] * len(option)
    return OptionRow(
        tokens_T=np.array(tokens),
        positions_T=np.array(positions),
        documents_T=np.zeros(len(tokens), dtype=np.int64),
        labels_T=np.array(labels),
        branches_T=np.array(branches),
        spans=tuple(spans),
        answer=answer,
        encoder_U=None if encoder is None else np.array(encoder),
    )


def row_size(prompt: Sequence[int], options: Sequence[Sequence[int]]) -> int:
    """Tokens of `option_row`."""
    return len(prompt) + sum(map(len, options)) - 1


def option_batch(rows: Sequence[OptionRow], pad: int) -> dict[str, np.ndarray]:
    """Rows as one batch [B, T] with `branches_BT`, padded to the longest."""
    parts = [
        {
            "tokens": r.tokens_T,
            "positions": r.positions_T,
            "documents": r.documents_T,
            "labels": r.labels_T,
            "branches": r.branches_T,
        }
        for r in rows
    ]
    batch = stacked(parts, max(len(r.tokens_T) for r in rows), pad)
    read = [r.encoder_U for r in rows if r.encoder_U is not None]
    return batch | (side("encoder_", "U", read, max(map(len, read)), pad) if read else {})


def stacked(rows: list[dict[str, np.ndarray]], length: int, pad: int) -> dict[str, np.ndarray]:
    """Rows of named arrays as one batch [B, length], padded."""
    fill = {"tokens": pad, "positions": 0, "documents": PADDING, "labels": NOT_SCORED, "branches": 0}
    result = {f"{name}_BT": np.full((len(rows), length), fill[name], dtype=np.int64) for name in rows[0]}
    for n, row in enumerate(rows):
        for name, values in row.items():
            result[f"{name}_BT"][n, : len(values)] = values
    return result
