"""Configs of the tasks that prepare data. `files`: all files read,
each with its content id; `place`, `length`: configuration keys, for errors.
"""

from atelier.engine.config.annotations import Described, MaskingUnits
from atelier.engine.config.base import JsonObject, Spec
from atelier.engine.config.chats import Chats
from atelier.engine.config.data import AdoptedEnds, Labels, Source, Tokenizer
from atelier.engine.config.evaluation_source import Form
from atelier.engine.config.generation import GENRES
from atelier.engine.config.taggers import Tagger


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
    pairs: bool = False


class EncodeConfig(Spec):
    """`files`: those of names of entities; `sources`: the number of the text's sources."""

    units: MaskingUnits = MaskingUnits()
    sources: int = 1
    files: tuple[tuple[str, str], ...] = ()


class ExtractConfig(Spec):
    """`files`: by tagger that reads rows. `marked`: the units of the sentences."""

    taggers: dict[str, Tagger] = {}
    files: dict[str, tuple[tuple[str, str], ...]] = {}
    marked: EncodeConfig = EncodeConfig()


class DescribeConfig(Spec):
    """`genre`: of all documents without a label, '' = by rules; `genres`: those that models have; `sources`:
    the number of the text's sources.
    """

    attributes: Described = Described()
    genre: str = ""
    genres: tuple[str, ...] = GENRES
    sources: int = 1
    files: tuple[tuple[str, str], ...] = ()


class PoseConfig(Spec):
    """`source`: what the source says (engine/config/evaluation_source.py). `files`: by what they are for, in
    their order.
    """

    name: str
    form: Form
    source: JsonObject
    files: dict[str, tuple[tuple[str, str], ...]]
    shots: int = 0
    seed: int = 0
    max_questions: int = 0
    max_tokens: int = 0
    place: str = "evals"
