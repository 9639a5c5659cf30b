"""A registered model answers prompts with its own files alone."""

import math
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas
import pytest

from atelier import IMPORT_ROOT
from atelier.engine.generate import SPLIT
from atelier.infra.tracking.predictor import Child, requests_of
from tests.infra.tracking.tiny_version import registered, tiny_files


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
    assert requests_of(np.array(["a", "b"]), {"max_tokens": 5}) == [one, two]
    assert requests_of([{key: np.array(value) for key, value in one.items()}], {}) == [one]
    assert requests_of({"prompt": np.array(["a", "b"]), "max_tokens": np.int64(5)}, {}) == [one, two]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([{"promt": "a"}], "^a request has `prompt` and any of .*; got promt$"),
        (["a", {}], "^row 2: .* got nothing$"),
        (["a", None], "^row 2: prompt is None; give a text$"),
        ([{"prompt": ["a"]}], r"^prompt is \['a'\]; give a text$"),
        ([{"prompt": "a", "max_tokens": "many"}], "^max_tokens is 'many'; give a whole number$"),
        ([{"prompt": "a", "max_tokens": 1.5}], "^max_tokens is 1.5; give a whole number$"),
        ([{"prompt": "a", "max_tokens": 1e300}], "^max_tokens is 1e\\+300; give a whole number$"),
        ([{"prompt": "a", "seed": "1e9999999"}], "^seed is '1e9999999'; give a whole number$"),
        ([{"prompt": "a", "seed": " " * 100 + "1"}], r"^seed is ' {59}\.\.\.; give a whole number$"),
        ([{"x" * 100: 1}], r"got x{60}\.\.\.$"),
        ([{"prompt": "a", "temperature": math.inf}], "^temperature is inf; give a number$"),
        (
            {"prompt": ["a", "b"], "seed": [1]},
            "^the lists of a request must have equal lengths; got prompt 2, seed 1$",
        ),
        (pandas.DataFrame({"a": ["x"], "b": ["y"]}), "got a, b$"),
    ],
)
def test_what_is_no_request_is_told_in_one_line(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        requests_of(given, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("num_shards", "split"),
    [
        (1, ""),
        pytest.param(3, "", marks=pytest.mark.slow),
        pytest.param(1, "shard=2", marks=pytest.mark.slow),
    ],
)
def test_a_registered_model_answers_when_its_store_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_shards: int, split: str
) -> None:
    monkeypatch.setenv(SPLIT, split)
    uri = registered(tmp_path, tiny_files(num_shards))
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
    predictor = model.unwrap_python_model()
    with ThreadPoolExecutor() as pool:
        endless = pool.submit(model.predict, ["a", "b"], {"max_tokens": 200_000, "temperature": 0.0})
        assert model.predict("def ", params=again) == first[:1]  # beside it
        predictor._child._process.kill()
        with pytest.raises(RuntimeError, match="exit code -9"):
            endless.result()
    assert model.predict("def ", params=again) == first[:1]  # of another child
    predictor.close()


def test_a_child_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    child = Child(str(tmp_path / "no-model"), str(IMPORT_ROOT))
    with pytest.raises(RuntimeError, match=r"^the generating process ended with exit code 2: .*no-model.*$"):
        child.ask({"prompt": "x"}).result()
    assert child.has_ended
    child.close()


@pytest.mark.parametrize("words", ["tensors=2", "tensor", "tensor=two", "tensor=-1"])
def test_a_layout_that_is_none_ends_the_child_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv(SPLIT, words)
    child = Child(str(tmp_path / "no-model"), str(IMPORT_ROOT))
    with pytest.raises(RuntimeError, match=r"exit code 2: ATELIER_SERVE_SPLIT\.tensor"):
        child.ask({"prompt": "x"}).result()
    child.close()
