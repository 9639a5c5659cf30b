"""A registered model answers prompts from its own files alone."""

import json
import math
import shutil
import warnings
from pathlib import Path

import mlflow
import numpy as np
import pandas
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atelier import IMPORT_ROOT
from atelier.engine.config.model.gpt import GPT
from atelier.engine.io.weight_files import INDEX, WEIGHTS, shard_name
from atelier.infra.store.store import Store
from atelier.infra.tracking.predictor import Child, requests_of
from atelier.infra.tracking.tracker import Tracker
from tests.infra.records import Shelf


def tiny_files(num_shards: int) -> dict[str, bytes]:
    """A byte-level model of a few thousand random weights, in one file or in shards, written without
    torch.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    spec = GPT(kind="gpt", num_layers=1, hidden=16, num_heads=2, vocab=257)
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


def test_any_form_of_input_becomes_one_request_a_row() -> None:
    one = {"prompt": "a", "max_tokens": 5, "temperature": 0.8, "top_p": 1.0, "seed": 1}
    two = one | {"prompt": "b"}
    assert requests_of("a", {"max_tokens": 5}) == [one]
    assert requests_of(["a", "b"], {"max_tokens": 5}) == [one, two]
    assert requests_of({"prompt": ["a", "b"], "max_tokens": 5}, {}) == [one, two]
    assert requests_of([{"prompt": "a", "max_tokens": 5}, {"prompt": "b"}], {"max_tokens": 5}) == [one, two]
    assert requests_of(
        pandas.DataFrame({"prompt": ["a", "b"], "max_tokens": [5.0, math.nan]}), {"max_tokens": 5}
    ) == [one, two]
    assert requests_of(pandas.Series(["a"]), {"max_tokens": 5}) == [one]
    with pytest.raises(ValueError, match="got promt"):
        requests_of([{"promt": "a"}], {})


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_registered_model_answers_when_its_store_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shards: int
) -> None:
    shelf = Shelf(Store(str(tmp_path / "store")))
    segment = shelf.trajectory("tiny", {})
    record = shelf.publish(
        "model",
        "tiny",
        {"trajectory": segment.fingerprint},
        files=tiny_files(num_shards),
        summary={"step": 1, "role": "tiny"},
        step=1,
    )
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracked = Tracker(uri, shelf.store, flow="demo", command="atelier", run_id="run-1", config={})
    tracked.register(record, aliases=["latest"])
    assert tracked.close() == []
    for kind in ("model", "trajectory"):
        shutil.rmtree(tmp_path / "store" / kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, at loading
        model = mlflow.pyfunc.load_model("models:/tiny@latest")
    again = {"max_tokens": 6, "temperature": 1.0, "seed": 3}
    first = model.predict(["def ", "class "], params=again)
    assert [type(text) for text in first] == [str, str] and all(first) and first[0] != first[1]
    assert model.predict(pandas.DataFrame([{"prompt": "class "} | again])) == first[1:]
    with pytest.raises(ValueError, match="temperature"):
        model.predict([{"prompt": "x", "temperature": -1.0}])
    assert model.predict("def ", params=again) == first[:1]
    model.unwrap_python_model()._child._process.kill()
    with pytest.raises(RuntimeError, match="exit code -9"):
        model.predict("def ", params=again)
    model.unwrap_python_model().close()


def test_a_child_that_cannot_start_says_why(tmp_path: Path) -> None:
    child = Child(str(tmp_path / "no-model"), str(IMPORT_ROOT))
    with pytest.raises(ValueError, match="no-model"):
        child.ask({"prompt": "x"})
    child.close()
