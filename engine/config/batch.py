"""Table of all batch tensors: dims, padding value, and split over ranks.

B rows, T tokens of a row, U tokens of the encoder's row, N documents of a row. With `context` > 1 a rank
holds part of each row's tokens; tensors of whole rows that it still needs have names of their own.
Torch-free.
"""

from collections.abc import Mapping
from typing import NamedTuple

from atelier.engine.config.error import ConfigError, nearest

PADDING, NOT_SCORED = -1, -100  # in `documents`, in `labels` and `classes`
LENGTHS = ("T", "U")
SHORTEST = 8  # tokens of the shortest allowed training sequence


def num_windows(tokens: int, sequence: int) -> int:
    """The number of windows in a text of `tokens` tokens. A window is `sequence` tokens and the next one."""
    return max(0, tokens - 1) // sequence


def unread(tokens: int, sequence: int) -> int:
    """The number of tokens after the last window, which are never read."""
    return max(0, tokens - 1) % sequence


def unread_note(tokens: Mapping[str, int], sequence: int) -> str:
    """A warning about unread tokens after the last window of each text (name -> tokens); '' if they are below
    1 % of each.
    """
    found = {name: (unread(size, sequence), size) for name, size in tokens.items()}
    if all(100 * rest <= size for rest, size in found.values()):
        return ""
    said = ", ".join(f"{rest} of {size} of {name}" for name, (rest, size) in found.items() if rest)
    return (
        f"tokens after the last whole window of train.sequence={sequence} are never read: {said}; a shorter"
        " sequence or more text leaves fewer"
    )


class BatchTensor(NamedTuple):
    """`dims`: one letter each. `fill`: value of padding, and of rows whose data set lacks the tensor.

    `whole`: name of the tensor of whole rows where `context` splits the tokens. `between`: with sequence
    parallelism, it is read where tokens are split over `tensor` (between the matrices).
    """

    dims: str
    fill: int = 0
    whole: str = ""
    between: bool = False

    @property
    def length(self) -> str:
        """The dim that counts tokens: T, U, or '' for a tensor without tokens."""
        return next((dim for dim in self.dims if dim in LENGTHS), "")


TENSORS: Mapping[str, BatchTensor] = {
    "tokens_BT": BatchTensor("BT"),
    "positions_BT": BatchTensor("BT"),
    "documents_BT": BatchTensor("BT", PADDING, whole="documents_BS"),
    "labels_BT": BatchTensor("BT", NOT_SCORED),
    "memory_BT": BatchTensor("BT", between=True),  # 1 = attended to, but without gradient
    "prompts_BT": BatchTensor("BT", -1, between=True),  # row of the soft-prompt table; -1 = a token
    "branches_BT": BatchTensor("BT"),  # options that follow one prompt
    "segments_BT": BatchTensor("BT", -1, whole="segments_BS"),  # segment number in its row; -1 = none
    "encoder_tokens_BU": BatchTensor("BU"),
    "encoder_positions_BU": BatchTensor("BU"),
    "encoder_documents_BU": BatchTensor("BU", PADDING, whole="encoder_documents_BW"),
    "bidirectional_B": BatchTensor("B"),  # 1 = the row's tokens see their whole document
    "classes_B": BatchTensor("B", NOT_SCORED),
    "parts_B": BatchTensor("B", -1),  # the mixture part that a row belongs to
    "samples_B": BatchTensor("B"),  # number of the sample in the stream
    # made by a training, never by a data set
    "ends_BN": BatchTensor("BN"),  # ends of whole rows' documents, if the attention reads them
    "noise_BT": BatchTensor("BT", between=True),  # dropout keys
    "encoder_noise_BU": BatchTensor("BU", between=True),
}
ENCODER = ("encoder_tokens_BU", "encoder_positions_BU", "encoder_documents_BU")  # made by a data set
DOCUMENTS = {"T": "documents_BT", "U": "encoder_documents_BU"}  # tensors that mark padding
PLACES = {"T": "places_T", "U": "places_U"}  # positions of a rank's tokens within their rows, if split


def batch_tensor(name: str) -> BatchTensor:
    """The table's entry. Raises ConfigError for an unknown name."""
    if name not in TENSORS:
        near = nearest(name, TENSORS)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"batch.{name}", "unknown tensor", f"{hint}engine/config/batch.py lists all tensors"
        )
    return TENSORS[name]
