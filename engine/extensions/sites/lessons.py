"""Tensors and bytes of messages to students at other sites. The lesson is a teacher's answers
(objective/top.py), or one of an extension, in its config/lesson/<name>.py:

    SHOWN    the form of its messages, as a plan shows it
    STATE    the name of the state that a teacher's checkpoint keeps for students that are steps behind
    entries  (ids, *, rows, tokens) -> the tensors of a message about that many tokens
    share    (teacher: Role) -> the share of a step's tokens that it is about

Torch-free.
"""

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.lesson_state import LESSONS
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.encoded import body_bytes
from atelier.engine.io.tensorfile import NARROW, TensorEntry, in_file_order

OFFERS = ("SHOWN", "STATE", "entries", "share")


def message_entries(lesson: str, ids: int, *, rows: int, tokens: int) -> list[TensorEntry]:
    """The tensors of a message of an extension's lesson."""
    return kind_module(LESSONS, lesson, *OFFERS).entries(ids, rows=rows, tokens=tokens)


def most_bytes(train: Train, model: ModelSpec, lesson: str) -> int:
    """The most bytes of a step's message: those of one about every token. `model`: the teacher's, or one with
    the same vocabulary.
    """
    rows, tokens = train.global_batch, train.global_batch * train.sequence
    if lesson != ANSWERS:
        return body_bytes(message_entries(lesson, model.ids, rows=rows, tokens=tokens))
    return answer_bytes(link_of(train), model.ids, rows=rows, tokens=tokens, precision=train.precision)


def usual_bytes(train: Train, model: ModelSpec, lesson: str, teacher: Role) -> int:
    """The bytes of a usual message of a lesson. For answers all tokens are counted, though those at the ends
    of documents are not scored.
    """
    rows, tokens = train.global_batch, train.global_batch * train.sequence
    if lesson != ANSWERS:
        tokens = round(tokens * kind_module(LESSONS, lesson, *OFFERS).share(teacher))
        return body_bytes(message_entries(lesson, model.ids, rows=rows, tokens=tokens))
    return answer_bytes(link_of(train), model.tokens, rows=rows, tokens=tokens, precision=train.precision)


def bytes_of_token(link: Link, model: ModelSpec, lesson: str, precision: str) -> int:
    """Bytes of each token that a message is about."""
    if lesson != ANSWERS:
        return sum(entry.num_bytes for entry in message_entries(lesson, model.ids, rows=0, tokens=1))
    return token_bytes(link, model.tokens, precision=precision)


def form_of(link: Link, lesson: str) -> str:
    """The form of a lesson's messages, as a plan shows it."""
    return (
        kind_module(LESSONS, lesson, *OFFERS).SHOWN if lesson != ANSWERS else f"top {link.top}, {link.values}"
    )


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
    """Bytes of each scored token: 98 with 32 tokens of an answer in 8 bits."""
    entries = answer_entries(link, vocab, rows=0, tokens=1, precision=precision)
    return sum(entry.num_bytes for entry in entries if entry.name.endswith(("_NK", "_N")))
