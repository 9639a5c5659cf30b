"""Start of a soft prompt's training: the model without it, and the tokens whose rows initialise it."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from atelier.engine.config.data import MASK
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Trainable
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.corpus import TRAIN, LabelledLine
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput

# inputs that initial values need
NEEDS = {
    "text": ("tokenizer",),
    "mask": ("tokenizer",),
    "labels": ("tokenizer", "labels"),
    "frequent": ("tokenizer", "labels"),
}


def begun_from(spec: ModelSpec, trainable: Trainable) -> ModelSpec:
    """The model that a role's model starts from: without the soft prompt being tuned."""
    if trainable.kind != "prompt":
        return spec
    return spec.model_copy(update={"soft_prompt": SoftPrompt()})


def prompt_ids(trainable: Trainable, inputs: Mapping[str, ArtifactInput], scratch: Path) -> list[int]:
    """The tokens whose rows initialise a soft prompt: those of a text, of the options of labelled examples,
    the most frequent ones of their training prompts, or the mask; none for values of other kinds. Raises
    ConfigError if their inputs are missing.
    """
    first = trainable.first
    if first not in NEEDS:
        return []
    for name in NEEDS[first]:
        if name not in inputs:
            raise ConfigError(
                "trainable.first", f"{first}, but this training has no {name}", "first=vocabulary"
            )
    vocabulary = Vocabulary.of(inputs["tokenizer"], scratch)
    if first == "text":
        return vocabulary.encode(trainable.text)
    if first == "mask":
        return [vocabulary.special(MASK)]
    if first == "frequent":
        lines = cast(list[LabelledLine], inputs["labels"].lines(f"{TRAIN}.jsonl", scratch))
        prompts = vocabulary.encode_all([line["prompt"] for line in lines])
        counts = Counter(token for prompt in prompts for token in prompt)
        return sorted(counts, key=lambda token: (-counts[token], token))[: trainable.length]
    options = inputs["labels"].record.summary.get("options") or []
    return [token for option in options for token in vocabulary.encode(str(option))]
