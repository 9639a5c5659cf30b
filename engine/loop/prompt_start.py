"""Start of a soft prompt's training: the model without it, and the tokens whose rows initialise it."""

from collections.abc import Mapping
from pathlib import Path

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Trainable
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


def begun_from(spec: ModelSpec, trainable: Trainable) -> ModelSpec:
    """The model that a role's model starts from: without the soft prompt being tuned."""
    if trainable.kind != "prompt":
        return spec
    return spec.model_copy(update={"soft_prompt": SoftPrompt()})


def prompt_ids(trainable: Trainable, inputs: Mapping[str, ArtifactInput], scratch: Path) -> list[int]:
    """The tokens whose rows initialise a soft prompt: those of a text, or of the options of labelled
    examples; none if initial values are random. Raises ConfigError if their inputs are missing.
    """
    if trainable.first not in ("text", "labels"):
        return []
    for name in ("tokenizer", *(["labels"] if trainable.first == "labels" else [])):
        if name not in inputs:
            raise ConfigError(
                "trainable.first", f"{trainable.first}, but this training has no {name}", "first=vocabulary"
            )
    vocabulary = Vocabulary.of(inputs["tokenizer"], scratch)
    if trainable.first == "text":
        return vocabulary.encode(trainable.text)
    options = inputs["labels"].record.summary.get("options") or []
    return [token for option in options for token in vocabulary.encode(str(option))]
