"""Read request bodies for `mlflow models serve`: JSON or CSV of limited size and depth, as rows of texts and
numbers. MLflow itself reads CSV fields as numbers ("007" as 7), answers deep documents with status 500 and
makes arrays as wide as the longest text.

This file imports nothing of the project, because registered models carry it to the server that MLflow starts.
"""

import csv
import io
import json
import re
from itertools import islice
from typing import Any, NoReturn

MOST_BYTES = 8 << 20
MOST_DEPTH = 32  # levels of brackets; the deepest request form has 3
MOST_ROWS = 10_000
MOST_LINES = 2 * MOST_ROWS + 2  # of CSV; some programs write an empty line after each
MOST_WORDS = 300_000  # marks and texts per document; 10,000 rows with all values have 220,000
MOST_DIGITS = 100
FORMS = ("inputs", "instances", "dataframe_records", "dataframe_split")
SEVERAL = "send several requests"
TYPES = ("application/json", "text/csv")
# texts, so that marks inside do not count; possessive: long ones take no memory
WORD = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},:]', re.DOTALL)


class BodyRefused(Exception):
    """The reason why a body cannot be read, with the status of the answer."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def plain_body(kind: str, body: bytes) -> bytes:
    """The body as JSON in one of two forms whose values MLflow does not change: a column `prompt` with one
    dict per row; or `prompt` itself, which is answered by a bare list. Raises BodyRefused.
    """
    if len(body) > MOST_BYTES:
        raise BodyRefused(f"the body is larger than {MOST_BYTES >> 20} MiB; {SEVERAL}", 413)
    if check_type(kind) == TYPES[1]:
        return _column(csv_rows(body))
    document = read_json(body)
    if not isinstance(document, dict):
        raise BodyRefused('a request is a JSON object, such as {"prompt": "..."}')
    forms = [form for form in FORMS if form in document]
    if not forms and "prompt" not in document:
        got = shown(", ".join(document)) if document else "nothing"
        raise BodyRefused(f"a request has prompt, or one of {', '.join(FORMS)}; got {got}")
    if not forms:
        return json.dumps({"prompt": columns_of(document)}).encode()
    other = sorted(map(shown, document.keys() - {forms[0], "params"}))
    if other:
        raise BodyRefused(f"a request has {forms[0]} and params; got {cut(', '.join(other))} besides")
    params = document.get("params") or {}
    if not isinstance(params, dict) or "prompt" in params:
        raise BodyRefused(f"params is {shown(params)}; give an object of values for all rows")
    rows = rows_of(forms[0], document[forms[0]])
    _check_shared(params, len(rows))
    return _column([params | _given(row) for row in rows])


def check_type(kind: str) -> str:
    """The body's type without its parameters. Raises BodyRefused for an unsupported one."""
    name, *more = (part.strip() for part in kind.lower().split(";"))
    if name not in TYPES or any(part not in ("", "charset=utf-8", 'charset="utf-8"') for part in more):
        raise BodyRefused(f"Content-Type is {shown(kind)}; send {' or '.join(TYPES)} in UTF-8", 415)
    return name


def read_json(body: bytes) -> Any:
    """Parse strict JSON: no NaN, no number beyond a float. Raises BodyRefused, before parsing if there are so
    many values that other requests would wait.
    """
    depth = 0
    for number, found in enumerate(WORD.finditer(body)):
        if number >= MOST_WORDS:
            raise BodyRefused(f"the document has more than {MOST_WORDS} marks and texts; {SEVERAL}", 413)
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(found[0], 0)
        if depth > MOST_DEPTH:
            raise BodyRefused(f"the document is nested deeper than {MOST_DEPTH}; send requests as rows")
    try:
        return json.loads(body.decode(), parse_constant=_constant, parse_int=_whole)
    except UnicodeDecodeError:
        raise BodyRefused("the body is not UTF-8") from None
    except ValueError as error:
        raise BodyRefused(f"the body is not JSON ({error})") from None


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, more than {MOST_DIGITS}")
    return int(digits)


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def csv_rows(body: bytes) -> list[dict[str, str]]:
    """One dict per line, with names from the first line; all fields are texts, empty ones are left out.
    Raises BodyRefused.
    """
    csv.field_size_limit(MOST_BYTES)
    try:
        found = csv.reader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True)
        lines = list(islice(found, MOST_LINES + 1))
    except UnicodeDecodeError:
        raise BodyRefused("the body is not UTF-8") from None
    except csv.Error as error:
        raise BodyRefused(f"the body is not CSV ({error})") from None
    for count, most, what in (
        (len(lines), MOST_LINES, "lines"),
        (sum(map(len, lines)), MOST_WORDS, "fields"),
    ):
        if count > most:
            raise BodyRefused(f"the body has more than {most} {what}; {SEVERAL}", 413)
    lines = [line for line in lines if line]
    if not lines:
        raise BodyRefused("the body is empty; its first line has the names of the columns")
    names, *lines = lines
    if len(set(names)) < len(names):
        raise BodyRefused(f"line 1 has a name twice: {shown(', '.join(names))}")
    names = ["prompt"] if len(names) == 1 else names
    _check_number(len(lines))
    _check_shared(names, len(lines))
    for number, line in enumerate(lines, 2):
        if len(line) != len(names):
            raise BodyRefused(f"row {number - 1} has {len(line)} fields, but there are {len(names)} names")
    return [
        {name: text for name, text in zip(names, line, strict=True) if text or name == "prompt"}
        for line in lines
    ]


def rows_of(form: str, given: Any) -> list[Any]:
    """The rows in one of MLflow's forms. Raises BodyRefused."""
    if form == "dataframe_split":
        given = _joined(given)
    elif form == "dataframe_records" and not isinstance(given, list):
        raise BodyRefused(f"dataframe_records is {shown(given)}; give a list of objects")
    if isinstance(given, dict):
        return columns_of(given)
    rows = given if isinstance(given, list) else [given]
    _check_number(len(rows))
    return rows


def columns_of(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an object with one list per column, or with values for all rows. Raises BodyRefused."""
    many = {key: value for key, value in given.items() if isinstance(value, list)}
    counts = {len(value) for value in many.values()} or {1}
    if len(counts) > 1:
        told = ", ".join(f"{shown(key)} {len(value)}" for key, value in many.items())
        raise BodyRefused(f"the lists of a request must have one length; got {cut(told)}")
    _check_number(max(counts))
    _check_shared({key: None if key in many else value for key, value in given.items()}, max(counts))
    return [
        {key: many[key][row] if key in many else value for key, value in given.items()}
        for row in range(counts.pop())
    ]


def _joined(given: Any) -> list[dict[str, Any]]:
    names, data = (given.get("columns"), given.get("data")) if isinstance(given, dict) else (None, None)
    if (
        not isinstance(names, list)
        or not isinstance(data, list)
        or not all(isinstance(n, str) for n in names)
    ):
        raise BodyRefused('dataframe_split must be {"columns": [names], "data": [[values], ...]}')
    names = ["prompt"] if len(names) == 1 else names
    _check_shared(names, len(data))
    for number, row in enumerate(data, 1):
        if not isinstance(row, list) or len(row) != len(names):
            raise BodyRefused(f"row {number}: give a list of {len(names)} values")
    return [dict(zip(names, row, strict=True)) for row in data]


def _given(row: Any) -> dict[str, Any]:
    """A row without the values that it takes from `params`."""
    if not isinstance(row, dict):
        return {"prompt": row}
    return {key: value for key, value in row.items() if value is not None or key == "prompt"}


def _check_number(rows: int) -> None:
    if rows > MOST_ROWS:
        raise BodyRefused(f"{rows} rows are more than {MOST_ROWS}; {SEVERAL}")


def _check_shared(values: Any, rows: int) -> None:
    """Each row gets a copy of them and their names: a short body could become thousands."""
    if len(json.dumps(values)) * rows > MOST_BYTES:
        problem = f"the shared values of {rows} rows are larger than {MOST_BYTES >> 20} MiB in total"
        raise BodyRefused(f"{problem}; {SEVERAL}", 413)


def _column(rows: list[dict[str, Any]]) -> bytes:
    split = {"columns": ["prompt"], "data": [[row] for row in rows]}
    return json.dumps({"dataframe_split": split}).encode()


def shown(value: Any) -> str:
    return cut(repr(value))


def cut(text: str) -> str:
    """`text`, cut for an answer."""
    return text if len(text) <= 60 else f"{text[:60]}..."
