"""A tiny model and its registered version, made without torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atelier.engine.config.base import parse
from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.weight_files import INDEX, WEIGHTS, shard_name
from atelier.infra.store.store import Store
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from tests.infra.records import Shelf


def tiny_files(num_shards: int = 1, **settings: Any) -> dict[str, bytes]:
    """A byte-level model of a few thousand random weights, in one file or in shards, written without
    torch.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    numbers = {"num_layers": 1, "hidden": 16, "num_heads": 2, "vocab": 257} | settings
    spec = parse(GPT, numbers, "model")
    draw = np.random.default_rng(1)
    weights = {name: draw.normal(0, 0.3, shape).astype(np.float32) for name, shape in spec.shapes().items()}
    names = sorted(weights)
    shards = {shard_name(n + 1, num_shards): names[n::num_shards] for n in range(num_shards)}
    if num_shards == 1:
        shards = {WEIGHTS: names}
    files = {
        file: save({name: weights[name] for name in held}, {"format": "pt"}) for file, held in shards.items()
    }
    if num_shards > 1:
        owners = {name: file for file, held in shards.items() for name in held}
        files[INDEX] = json.dumps({"metadata": {}, "weight_map": owners}).encode()
    return files | {
        "config.json": json.dumps(spec.model_dump()).encode(),
        "tokenizer.json": tokenizer.to_str().encode(),
    }


def registered(folder: Path, files: dict[str, bytes], uri: str = "", store: str = "store") -> str:
    """Register a model of these files as `tiny@latest`; returns MLflow's address."""
    shelf = Shelf(Store(str(folder / store)))
    segment = shelf.trajectory("tiny", {})
    record = shelf.publish(
        "model",
        "tiny",
        {"trajectory": segment.fingerprint},
        files=files,
        summary={"step": 1, "role": "tiny"},
        step=1,
    )
    uri = uri or f"sqlite:///{folder}/mlflow.db"
    tracked = MlflowTracker(uri, shelf.store, flow="demo", command="atelier", run_id="run-1", config={})
    tracked.register(record, aliases=["latest"])
    assert tracked.close() == []
    return uri
