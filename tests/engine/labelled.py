"""A small training setup for fine-tuning."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.engine.trainings import VOCAB, TrainingSetup, artifact, role, train


def labelled_setup(folder: Path) -> TrainingSetup:
    """A folder with a finished model, a tokenizer of 64 tokens and 24 labelled examples."""
    setup = TrainingSetup(folder)
    letters = [chr(97 + i) for i in range(26)]
    vocabulary = {token: i for i, token in enumerate(["<|end|>", "<|pad|>", *letters])}
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens(["<|end|>", "<|pad|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    setup.inputs["tokenizer"] = artifact(
        folder / "tokenizer", "tokenizer", {"tokenizer.json": tokenizer.to_str().encode()}
    )
    lines = [
        {"prompt": "abc" * (1 + i % 3), "completion": "xy"[i % 2], "options": ["x", "y"]} for i in range(24)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    setup.inputs["labels"] = artifact(folder / "labels", "labels", {"train.jsonl": text, "test.jsonl": text})
    setup.train(setup.training({"base": role()}, train(4)))
    setup.inputs["base"] = setup.as_input("base")
    return setup
