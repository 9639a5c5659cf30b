"""Configs of the tasks that prepare data; encode, extract and describe have none. `files`: all files read,
each with its content id; `place`, `length`: configuration keys, for errors.
"""

from atelier.engine.config.base import Spec
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import AdoptedEnds, Labels, Source, Tokenizer


class CurateConfig(Spec):
    source: Source
    held_out: float
    files: tuple[tuple[str, str], ...]


class TokenizerConfig(Spec):
    tokenizer: Tokenizer
    files: tuple[tuple[str, str], ...] = ()
    texts: AdoptedEnds | None = None


class LabelConfig(Spec):
    labels: Labels
    files: tuple[tuple[str, str], ...]
    place: str = "finetune.labels"


class RenderConfig(Spec):
    chats: Chats
    sequence: int
    files: tuple[tuple[str, str], ...]
    place: str = "chats"
    length: str = "train.sequence"
