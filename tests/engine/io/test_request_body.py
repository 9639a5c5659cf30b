"""What a short body makes of itself (engine/io/request_body.py)."""

import json

import pytest

from atelier.engine.io.request_body import BodyRefused, plain_body


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": ["a"] * 10_000, "params": {"seed": "x" * 1_000_000}},
        {"inputs": {"prompt": ["a"] * 10_000, "max_tokens": "x" * 1_000_000}},
        {"prompt": "x" * 1_000_000, "seed": [1] * 10_000},
        {"prompt": "x" * 1_000_000, "seed": [1] * 9},
        {"inputs": {"prompt": ["a"] * 9, "x" * 1_000_000: [1] * 9}},
        {"dataframe_split": {"columns": ["prompt", "x" * 1_000_000], "data": [["a", 1]] * 9}},
    ],
)
def test_what_all_rows_have_is_not_copied_beyond_the_size_of_a_body(document: dict[str, object]) -> None:
    with pytest.raises(BodyRefused, match=r"what all \d+ rows have is larger than 8 MiB") as refused:
        plain_body("application/json", json.dumps(document).encode())
    assert refused.value.status == 413
    with pytest.raises(BodyRefused, match="what all 9 rows"):
        plain_body("text/csv", b"prompt," + b"x" * 1_000_000 + b"\na,1" * 9)


def test_a_prompt_of_several_rows_is_written_once() -> None:
    body = plain_body("application/json", json.dumps({"prompt": "x" * 500_000, "seed": [1, 2, 3]}).encode())
    assert [row["seed"] for row in json.loads(body)["prompt"]] == [1, 2, 3]
