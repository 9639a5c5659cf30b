"""Memory and time of parsing a short request body (engine/io/request_body.py)."""

import json
import time

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
    with pytest.raises(BodyRefused, match=r"the shared values of \d+ rows are larger than 8 MiB") as refused:
        plain_body("application/json", json.dumps(document).encode())
    assert refused.value.status == 413
    with pytest.raises(BodyRefused, match="the shared values of 9 rows"):
        plain_body("text/csv", b"prompt," + b"x" * 1_000_000 + b"\na,1" * 9)


def test_a_prompt_of_several_rows_is_written_once() -> None:
    body = plain_body("application/json", json.dumps({"prompt": "x" * 500_000, "seed": [1, 2, 3]}).encode())
    assert [row["seed"] for row in json.loads(body)["prompt"]] == [1, 2, 3]


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[' + b"[]," * 2_700_000 + b"1]}",
        b'{"inputs":[{' + b",".join(b'"%d":1' % n for n in range(500_000)) + b"}]}",
        b'{"prompt":["x"],' + b",".join(b'"%d":[]' % n for n in range(400_000)) + b"}",
        b'""' * 4_000_000,
        b"csv:prompt\n" + b"a\n" * 4_000_000,
        b"csv:prompt\n" + b"\n" * 8_000_000,
        b"csv:" + b",".join(b"%d" % n for n in range(900_000)) + b"\n1",
    ],
    ids=["lists", "keys", "columns", "texts", "lines", "empty lines", "fields"],
)
def test_a_body_of_many_values_is_refused_before_it_holds_up_others(body: bytes) -> None:
    kind = "text/csv" if body.startswith(b"csv:") else "application/json"
    before = time.process_time()
    with pytest.raises(
        BodyRefused, match=r"more than \d+ (marks and texts|lines|fields); send several"
    ) as refused:
        plain_body(kind, body.removeprefix(b"csv:"))
    assert refused.value.status == 413 and time.process_time() - before < 1.5  # 1 to 5 s when all was read


@pytest.mark.parametrize("form", ["dataframe_records", "dataframe_split"])
def test_the_largest_request_that_there_is_is_read(form: str) -> None:
    """10,000 rows that give every value, as numbers or texts; marks in a text count nothing."""
    row = {"prompt": '[{,:"' * 100, "max_tokens": "4", "temperature": "0.5", "top_p": "1", "seed": "7"}
    given = (
        [row] * 10_000
        if form != "dataframe_split"
        else {"columns": [*row], "data": [[*row.values()]] * 10_000}
    )
    [column] = json.loads(plain_body("application/json", json.dumps({form: given}).encode())).values()
    assert column["data"] == [[row]] * 10_000


def test_an_answer_repeats_little_of_a_long_request() -> None:
    names = {str(n): [1] * (n % 2) for n in range(20_000)}
    for document in (names | {"prompt": []}, {"inputs": "a"} | names, {"x" * 100_000: 1}, {"inputs": names}):
        with pytest.raises(BodyRefused) as refused:
            plain_body("application/json", json.dumps(document).encode())
        assert len(str(refused.value)) < 200
