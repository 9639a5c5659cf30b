"""Objectives drawn for the random products, one of every kind."""

import random
from collections.abc import Callable, Mapping

from atelier.engine.config.objective.attention import Attention
from atelier.engine.config.objective.chat import Chat
from atelier.engine.config.objective.control import Control
from atelier.engine.config.objective.distance import Distance
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.knowledge import Knowledge
from atelier.engine.config.objective.lm import LM
from atelier.engine.config.objective.logits import Logits
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.objective.natural import Natural
from atelier.engine.config.objective.prefix import PrefixLM
from atelier.engine.config.objective.reorder import Reorder
from atelier.engine.config.objective.spans import Spans
from atelier.engine.config.registry import ObjectiveSpec

PROMPT_LENGTH = 2
Draw = random.Random


def has_encoder(rows: Mapping[str, ObjectiveSpec]) -> bool:
    return any(spec.encoder_length for spec in rows.values())


OWN: Mapping[str, Callable[[Draw], ObjectiveSpec]] = {
    "lm": lambda draw: LM(weight=draw.choice((0.5, 1.0))),
    "document": lambda draw: DocumentLM(rows=0.4, memory=draw.choice(("auto", 0, 4))),
    "mlm": lambda draw: MLM(weight=0.25, rows=0.3, sequence=draw.choice((0, 16))),
    "knowledge": lambda draw: Knowledge(weight=0.1, rows=0.2),
    "reorder": lambda draw: Reorder(
        weight=0.1, rows=0.2, max_segments=draw.choice((2, 3)), sequence=draw.choice((0, 24))
    ),
    "distance": lambda draw: Distance(weight=0.05, rows=0.2),
    "control": lambda draw: Control(rows=0.4, prompt_length=PROMPT_LENGTH),
    "natural": lambda draw: Natural(weight=0.2, rows=0.2),
    "chat": lambda draw: Chat(weight=0.5),
    "spans": lambda draw: Spans(encoder=draw.choice((24, 40)), rate=0.3, mean=1.5),
    "prefix": lambda draw: PrefixLM(encoder=24, rows=0.5, sequence=draw.choice((0, 16))),
}
PAIRED = ("lm", "prefix", "spans")  # what a model with an encoder reads
TAUGHT: Mapping[str, Callable[[Draw], ObjectiveSpec]] = {
    "logits": lambda draw: Logits(temperature=draw.choice((1.0, 2.0))),
    "attention": lambda draw: Attention(
        auxiliary=draw.random() < 0.5, relation_heads=draw.choice(("auto", 2, 4))
    ),
    "hidden": lambda draw: Hidden(),
}


def own_objectives(draw: Draw) -> dict[str, ObjectiveSpec]:
    some = PAIRED if draw.random() < 0.25 else sorted({*OWN} - {*PAIRED} | {"lm"})
    names = draw.sample(some, draw.randint(1, min(4, len(some))))
    return {name: OWN[name](draw) for name in names}
