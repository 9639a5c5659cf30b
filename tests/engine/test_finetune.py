"""Training that starts from a finished model, on labelled examples, with all weights or a few."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.data.vocabulary import Vocabulary
from engine.spec.error import ConfigError
from engine.spec.role import Trainable
from engine.spec.run import Stream, Training
from tests.engine.house import VOCAB, House, artifact, model, role, train


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A house with a finished model, a tokenizer of 64 tokens and 24 labelled examples."""
    house = House(tmp_path)
    letters = [chr(97 + i) for i in range(26)]
    vocabulary = {token: i for i, token in enumerate(["<|end|>", "<|pad|>", *letters])}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|end|>"))  # noqa: S106
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    house.inputs["tokenizer"] = artifact(tmp_path / "tokenizer", "tokenizer", {"tokenizer.json": tokenizer.to_str().encode()})
    lines = [{"prompt": "abc" * (1 + i % 3), "completion": "xy"[i % 2], "options": ["x", "y"]} for i in range(24)]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    house.inputs["labels"] = artifact(tmp_path / "labels", "labels", {"train.jsonl": text, "test.jsonl": text})
    house.train(house.training({"base": role()}, train(4)))
    house.inputs["base"] = house.as_input("base")
    return house
