"""What the training of a soft prompt begins with: the model without it, and the tokens of its first rows."""

from collections.abc import Mapping
from pathlib import Path

from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Trainable
from atelier.engine.config.soft_prompt import SoftPrompt
from atelier.engine.data.vocabulary import Vocabulary
from atelier.engine.io.artifact import ArtifactInput


def begun_from(spec: ModelSpec, trainable: Trainable) -> ModelSpec:
    """The model that a role's begins from: without the soft prompt that is tuned."""
    if trainable.kind != "prompt":
        return spec
    return spec.model_copy(update={"soft_prompt": SoftPrompt()})


def prompt_ids(trainable: Trainable, inputs: Mapping[str, ArtifactInput], scratch: Path) -> list[int]:
    """The tokens whose rows a soft prompt begins with: those of a text, or of the options of labelled
    examples; none where its first values are drawn. Raises ConfigError without the inputs that they need.
    """
    if trainable.first not in ("text", "labels"):
        return []
    for name in ("tokenizer", *(["labels"] if trainable.first == "labels" else [])):
        if name not in inputs:
            raise ConfigError(
                "trainable.first", f"{trainable.first}, and this training has no {name}", "first=vocabulary"
            )
    vocabulary = Vocabulary.of(inputs["tokenizer"], scratch)
    if trainable.first == "text":
        return vocabulary.encode(trainable.text)
    options = inputs["labels"].record.summary.get("options") or []
    return [token for option in options for token in vocabulary.encode(str(option))]
