"""A small training setup for fine-tuning."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atelier.engine.config.mixture import Stream
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.run_file import FILE_BYTES
from tests.engine.trainings import VOCAB, TrainingSetup, artifact, role, train

PROMPTS = ["abc" * (1 + i % 3) for i in range(24)]


def labelled_setup(
    folder: Path,
    shape: ModelSpec | None = None,
    prompts: Sequence[str] = PROMPTS,
    *,
    file_bytes: int = FILE_BYTES,
) -> TrainingSetup:
    """A folder with a finished model, a tokenizer of 64 tokens and labelled examples of these prompts."""
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
        {"prompt": prompt, "completion": "xy"[i % 2], "options": ["x", "y"]}
        for i, prompt in enumerate(prompts)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    setup.inputs["labels"] = artifact(folder / "labels", "labels", {"train.jsonl": text, "test.jsonl": text})
    training = setup.training({"base": role(shape=shape)}, train(4))
    if shape is not None and shape.reads_encoder:  # windows have nothing for an encoder: a step of examples
        examples = Stream(input="labels", kind="examples", num_examples=16)
        training = setup.training({"base": role(shape=shape)}, train(1, sequence=32))
        training = training.model_copy(update={"streams": (examples,)})
    setup.train(training, file_bytes=file_bytes)
    setup.inputs["base"] = setup.as_input("base")
    return setup
