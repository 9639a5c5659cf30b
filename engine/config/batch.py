"""The tensors of a batch: one table says of each its dims, what fills it, and how it is split over ranks.

B rows, T tokens of a row, U tokens of the row's other input, that of an encoder. With `context` > 1 a rank
has some tokens of each row; what it still needs of whole rows has a name of its own. Torch-free.
"""

from collections.abc import Mapping
from typing import NamedTuple

from atelier.engine.config.error import ConfigError, nearest

PADDING, NOT_SCORED = -1, -100  # in `documents`, in `labels` and `classes`
LENGTHS = ("T", "U")
SHORTEST = 8  # tokens of the shortest sequence that is trained on


def num_windows(tokens: int, sequence: int) -> int:
    """How many windows of `sequence` tokens, and the one that follows, a text of so many tokens has."""
    return max(0, tokens - 1) // sequence


def unread(tokens: int, sequence: int) -> int:
    """The tokens after the last window: they are never read."""
    return max(0, tokens - 1) % sequence


def unread_note(tokens: Mapping[str, int], sequence: int) -> str:
    """A note on the tokens behind the last window of each text, by the texts' names; '' where they are less
    than a hundredth of each.
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
    """`dims`, one letter each. `fill`: value of padding, and of rows whose data set lacks the tensor.

    `whole`: the name under which the tensor of whole rows is kept where `context` splits the tokens.
    `between`: read where sequence parallelism has split the tokens over `tensor`, between the matrices.
    """

    dims: str
    fill: int = 0
    whole: str = ""
    between: bool = False

    @property
    def length(self) -> str:
        """The dim that counts tokens: T, U, or '' for a tensor of rows."""
        return next((dim for dim in self.dims if dim in LENGTHS), "")


TENSORS: Mapping[str, BatchTensor] = {
    "tokens_BT": BatchTensor("BT"),
    "positions_BT": BatchTensor("BT"),
    "documents_BT": BatchTensor("BT", PADDING, whole="documents_BS"),
    "labels_BT": BatchTensor("BT", NOT_SCORED),
    "memory_BT": BatchTensor("BT", between=True),  # 1 = visible, but without gradient
    "prompts_BT": BatchTensor("BT", -1, between=True),  # row of the soft prompts; -1 = a token
    "branches_BT": BatchTensor("BT"),  # options after one prompt
    "segments_BT": BatchTensor("BT", -1, whole="segments_BS"),  # segment of its row; -1 = of none
    "encoder_tokens_BU": BatchTensor("BU"),
    "encoder_positions_BU": BatchTensor("BU"),
    "encoder_documents_BU": BatchTensor("BU", PADDING, whole="encoder_documents_BW"),
    "bidirectional_B": BatchTensor("B"),  # 1 = the row's tokens see their whole document
    "classes_B": BatchTensor("B", NOT_SCORED),
    "parts_B": BatchTensor("B", -1),  # which part of the mixture a row is of
    "samples_B": BatchTensor("B"),  # number of the sample in the stream
    # made by a training for its own tokens, never by a data set
    "noise_BT": BatchTensor("BT", between=True),  # dropout keys
    "encoder_noise_BU": BatchTensor("BU", between=True),
}
ENCODER = ("encoder_tokens_BU", "encoder_positions_BU", "encoder_documents_BU")  # of a data set
DOCUMENTS = {"T": "documents_BT", "U": "encoder_documents_BU"}  # what says which tokens are padding
PLACES = {"T": "places_T", "U": "places_U"}  # where a rank's tokens are in their rows, if it has only some


def batch_tensor(name: str) -> BatchTensor:
    """The table's entry. Raises ConfigError for a name that it does not have."""
    if name not in TENSORS:
        near = nearest(name, TENSORS)
        hint = f"did you mean {near}? " if near else ""
        raise ConfigError(
            f"batch.{name}", "no table knows this tensor", f"{hint}engine/config/batch.py says what there is"
        )
    return TENSORS[name]
