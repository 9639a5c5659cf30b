"""A trained model that talks: text in, text out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.artifact import Input
from engine.data.vocabulary import Vocabulary
from engine.model.load import read_model
from engine.sampling import continuation, whole_characters
from engine.spec.error import ConfigError
from engine.spec.sampling import Sampling

TOKENIZER = "tokenizer.json"


class Speaker:
    """A model with its tokenizer. `num_tokens` counts what it drew."""

    def __init__(self, model: nn.Module, vocabulary: Vocabulary) -> None:
        self.model, self.vocabulary = model.eval(), vocabulary
        self.num_tokens = 0

    def stream(self, prompt: str, sampling: Sampling) -> Iterator[str]:
        """The continuation of `prompt` in whole characters; an empty one starts behind an end token."""
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            fault = f"character {error.start} is half of a surrogate pair, which is not text"
            raise ConfigError("prompt", fault) from None
        ids = self.vocabulary.encode(prompt) or [self.vocabulary.end_id]
        return whole_characters(self._pieces(ids, sampling))

    def text(self, prompt: str, sampling: Sampling) -> str:
        return "".join(self.stream(prompt, sampling))

    def _pieces(self, ids: list[int], sampling: Sampling) -> Iterator[bytes]:
        for token in continuation(self.model, ids, sampling, self.vocabulary.end_id):
            self.num_tokens += 1
            yield self.vocabulary.bytes_of([token])


def read_speaker(source: Input, scratch: Path, device: torch.device) -> Speaker:
    """A model artifact and the tokenizer in it; weights and arithmetic in float32."""
    model, spec = read_model(source, scratch, device=device, dtype=torch.float32)
    vocabulary = Vocabulary.read(source.file(TOKENIZER, scratch))
    check_vocabulary(vocabulary, spec, source.url)
    return Speaker(model, vocabulary)


def check_vocabulary(vocabulary: Vocabulary, spec: Any, place: str) -> None:
    """Refuse a model whose table of tokens is not the tokenizer's."""
    if vocabulary.size != spec.tokens:
        raise ConfigError(
            place,
            f"the model has {spec.tokens} tokens, the tokenizer {vocabulary.size}",
            "use the tokenizer that the model was trained with, or train the model anew with this one",
        )
