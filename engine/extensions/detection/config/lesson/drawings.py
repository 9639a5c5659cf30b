"""The lesson `drawings`: a message with the tokens that a generator has drawn for the hidden tokens of a
step's rows. Torch-free.
"""

from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.role import Role
from atelier.engine.io.tensorfile import NARROW, TensorEntry, in_file_order

SHOWN, STATE = "drawn ids", "drawn"


def entries(ids: int, *, rows: int, tokens: int) -> list[TensorEntry]:
    """The tensors of the message for `tokens` hidden tokens in `rows` rows, with a vocabulary of `ids`."""
    return in_file_order(
        [
            TensorEntry("samples", "I64", (rows,)),
            TensorEntry("hidden", "I32", (rows,)),
            TensorEntry("places", "I32", (tokens,)),
            TensorEntry("ids", "U16" if ids <= NARROW else "I32", (tokens,)),
        ]
    )


def share(teacher: Role) -> float:
    """The share of tokens in a message: every row counts as one with hidden tokens, with this share of them
    on average.
    """
    return max((spec.rate for spec in teacher.objective.values() if isinstance(spec, MLM)), default=0.0)
