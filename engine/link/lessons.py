"""The messages to students at other sites, by lesson: a teacher's answers (answer_size.py), or a lesson of
an extension, in its config/lesson/<name>.py:

    SHOWN    how a plan calls the form of its messages
    STATE    the name of what a teacher's checkpoint keeps for students that are steps behind
    entries  (ids, *, rows, tokens) -> the tensors of a message about so many tokens
    share    (teacher: Role) -> of a step's tokens, those that it is about

Torch-free.
"""

from atelier.engine.config.base import ANSWERS
from atelier.engine.config.kind_files import kind_module
from atelier.engine.config.link import Link
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.link.answer_size import answer_bytes, token_bytes
from atelier.engine.link.encoded import body_bytes
from atelier.engine.link.messages import LESSONS

OFFERS = ("SHOWN", "STATE", "entries", "share")


def message_entries(lesson: str, ids: int, *, rows: int, tokens: int) -> list[TensorEntry]:
    """The tensors of a message of an extension's lesson."""
    return kind_module(LESSONS, lesson, *OFFERS).entries(ids, rows=rows, tokens=tokens)


def most_bytes(train: Train, model: ModelSpec, lesson: str) -> int:
    """The message of a step has at most so many bytes: those of one that is about every token. `model`: the
    teacher's, or one of the same vocabulary.
    """
    rows, tokens = train.global_batch, train.global_batch * train.sequence
    if lesson != ANSWERS:
        return body_bytes(message_entries(lesson, model.ids, rows=rows, tokens=tokens))
    return answer_bytes(train.link, model.ids, rows=rows, tokens=tokens, precision=train.precision)


def usual_bytes(train: Train, model: ModelSpec, lesson: str, teacher: Role) -> int:
    """The bytes of a usual message of a lesson; of answers, all tokens are counted, of which those at the
    ends of documents are not scored.
    """
    rows, tokens = train.global_batch, train.global_batch * train.sequence
    if lesson != ANSWERS:
        tokens = round(tokens * kind_module(LESSONS, lesson, *OFFERS).share(teacher))
        return body_bytes(message_entries(lesson, model.ids, rows=rows, tokens=tokens))
    return answer_bytes(train.link, model.tokens, rows=rows, tokens=tokens, precision=train.precision)


def bytes_of_token(link: Link, model: ModelSpec, lesson: str, precision: str) -> int:
    """Of each token that a message is about."""
    if lesson != ANSWERS:
        return sum(entry.num_bytes for entry in message_entries(lesson, model.ids, rows=0, tokens=1))
    return token_bytes(link, model.tokens, precision=precision)


def form_of(link: Link, lesson: str) -> str:
    """How a plan calls the form of its messages."""
    return (
        kind_module(LESSONS, lesson, *OFFERS).SHOWN if lesson != ANSWERS else f"top {link.top}, {link.values}"
    )


def state_of(lesson: str) -> str:
    """The name of what a teacher's checkpoint keeps for its students."""
    return kind_module(LESSONS, lesson, *OFFERS).STATE if lesson != ANSWERS else ""
