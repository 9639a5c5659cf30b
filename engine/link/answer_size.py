"""Bytes of a teacher's answers to the batch of a step (engine/objective/top.py), as a message holds them.
Torch-free.
"""

from atelier.engine.config.link import Link
from atelier.engine.io.tensorfile import TensorEntry, in_file_order
from atelier.engine.link.encoded import body_bytes

NARROW = 1 << 16  # vocabularies up to here have ids of 16 bits


def answer_entries(link: Link, vocab: int, *, rows: int, tokens: int, precision: str) -> list[TensorEntry]:
    """The tensors of the answers to `tokens` scored tokens in `rows` rows, in their order."""
    top = vocab if link.top == "all" else link.top
    exact = "F64" if precision == "fp64" else "F32"
    is_short = link.values == "8bit"
    found = [
        TensorEntry("samples_B", "I64", (rows,)),
        TensorEntry("scored_B", "I32", (rows,)),
        TensorEntry("loss", "F64", (1,)),
        TensorEntry("values_NK", "U8" if is_short else exact, (tokens, top)),
    ]
    if top < vocab:
        found.append(TensorEntry("ids_NK", "U16" if vocab <= NARROW else "I32", (tokens, top)))
        found.append(TensorEntry("others_N", "U16" if is_short else exact, (tokens,)))
    return in_file_order(found)


def answer_bytes(link: Link, vocab: int, *, rows: int, tokens: int, precision: str) -> int:
    """Bytes of the body of the message, its header included."""
    return body_bytes(answer_entries(link, vocab, rows=rows, tokens=tokens, precision=precision))


def token_bytes(link: Link, vocab: int, *, precision: str) -> int:
    """Of each scored token: 98 with 32 tokens of an answer in 8 bits."""
    entries = answer_entries(link, vocab, rows=0, tokens=1, precision=precision)
    return sum(entry.num_bytes for entry in entries if entry.name.endswith(("_NK", "_N")))
