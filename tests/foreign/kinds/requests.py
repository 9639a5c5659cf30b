"""Requests to a served model, drawn: host names, origins, methods, paths, types and bodies. Foreign and bad
ones are refused; none ends in a status of 500 or takes much memory.

The server is MLflow's own application behind Atelier's filters, in this process; a tiny model answers.
"""

import asyncio
import io
import json
import random
import resource
import tempfile
import threading
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from atelier.infra.tracking import predictor
from tests.checkout import TOP
from tests.foreign.search import Case

COUNT = 10
PORT = 5001
MEMORY = 30_000_000  # bytes of keys, values and masks
MOST_GROWTH = 400 << 10  # KiB by which the peak of this process may grow in one case
OWN = [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LocalHost:{PORT}", f"[::1]:{PORT}"]
FOREIGN = [
    "evil.example", f"evil.example:{PORT}", "127.0.0.1", "localhost", "127.0.0.1:1", f"2130706433:{PORT}",
    f"0x7f000001:{PORT}", f"0177.0.0.1:{PORT}", f"127.1:{PORT}", f"127.0.0.1.:{PORT}", f"localhost.:{PORT}",
    f"user@127.0.0.1:{PORT}", f"127.0.0.1:{PORT}, evil.example", f"[::ffff:127.0.0.1]:{PORT}",
    f"0.0.0.0:{PORT}",
    f"127.0.0.1:{PORT}@evil.example", f"127.0.0.1:0{PORT}", "", " ", "\xff", f"evil.example/127.0.0.1:{PORT}",
    f"127.0.0.1:{PORT}\x00", "a" * 10_000, f"127.0.0.2:{PORT}", f"localhost.evil.example:{PORT}",
]  # fmt: skip
ORIGINS = [
    "null",
    "http://evil.example",
    "http://127.0.0.1",
    f"http://127.0.0.1:{PORT}.evil.example",
    "",
    "file://",
]
PATHS = ["/ping", "/health", "/version", "/docs", "/redoc", "/openapi.json", "/", "/nowhere", "/invocations/",
         "//invocations", "/Invocations", "/../invocations", "/\udcff", "/invocations\x00"]  # fmt: skip
METHODS = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW", "post"]
KINDS = ["", "text/plain", "application/json; charset=latin-1", "application/octet-stream",
    "application/x-parquet",
         "multipart/form-data", ";", "application/json;" * 50, "\xff", "application/jsonp"]  # fmt: skip
GOOD = ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/json;"]
TEXTS = ["", "a", "def ", "007", "1e5", "NA", "null", "true", "nan", "-0", "1_000", "0x10", " 7 ",
    "a\u0000", "\n",
         '"', "a,b", "naïve", "是", "\u2028", "\ufeffa", "[[", "{", "\\", "😀"]  # fmt: skip
ODD: list[Any] = [None, True, 7, 1e5, -1, 0, 1.5, 10**30, -(10**30), 1e308, "", "many", "5", "1e3", [], {},
    [1],
                  {"a": 1}, "9" * 200, "1e9999999", 2**63, 2**64]  # fmt: skip


def draw(rng: random.Random) -> Case:
    host = [rng.choice(OWN)] if rng.random() < 0.75 else rng.choice([[], [rng.choice(FOREIGN)], OWN[:1] * 2])
    case: Case = {"host": host, "method": "POST", "path": "/invocations", "kind": rng.choice(GOOD)}
    if rng.random() < 0.15:
        case["origin"] = rng.choice([*ORIGINS, f"http://127.0.0.1:{PORT}"])
    if rng.random() < 0.1:
        case["path"] = rng.choice(PATHS)
    if rng.random() < 0.05:
        case["method"] = rng.choice(METHODS)
    body = rng.choice([_rows, _rows, _csv, _bad_value, _bad_value, _broken_json, _shape] * 2 + [_large])
    return case | body(rng) | ({"kind": rng.choice(KINDS)} if rng.random() < 0.07 else {})


def _row(rng: random.Random) -> dict[str, Any]:
    return {"prompt": rng.choice(TEXTS), "max_tokens": rng.randint(1, 3), "temperature": 0}


def _rows(rng: random.Random) -> Case:
    """Good requests in any form, and the texts in them."""
    rows = [_row(rng) for _ in range(rng.randint(1, 4))]
    texts = [row["prompt"] for row in rows]
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    same = {"max_tokens": rng.randint(1, 3), "temperature": 0.0}
    split = {"columns": list(columns), "data": [list(row.values()) for row in rows]}
    document = rng.choice([
        {"inputs": rows}, {"inputs": columns}, {"instances": rows}, {"dataframe_records": rows},
        {"dataframe_split": split}, {"inputs": texts, "params": same}, {"instances": texts, "params": same},
        columns,
    ])  # fmt: skip
    return {"body": json.dumps(document), "texts": texts}


def _csv(rng: random.Random) -> Case:
    rows = [_row(rng) for _ in range(rng.randint(1, 4))]
    quoted = ['"' + row["prompt"].replace('"', '""') + '"' for row in rows]
    end = rng.choice(["\n", "\r\n"])
    lines = ["prompt,max_tokens,temperature", *(f"{text},{rng.randint(1, 3)},0" for text in quoted)]
    return {
        "kind": "text/csv",
        "body": end.join(lines) + end * rng.randint(0, 2),
        "texts": [r["prompt"] for r in rows],
    }


def _bad_value(rng: random.Random) -> Case:
    key = rng.choice(
        ["prompt", "max_tokens", "temperature", "top_p", "seed", "best_of", "id", "leave", "wishes", "x"]
    )
    row = _row(rng) | {key: rng.choice(ODD)}
    if rng.random() < 0.2:
        row.pop(rng.choice(list(row)))
    document: Any = rng.choice([row, {"inputs": [row]}, {"inputs": [_row(rng), row]}, {"inputs": row},
                                {"inputs": "a", "params": row}])  # fmt: skip
    return {"body": json.dumps(document)}


def _broken_json(rng: random.Random) -> Case:
    deep = rng.choice([33, 1000, 3000, 100_000])
    return {"body": rng.choice([
        "", "{", "[]", "7", "null", '"a"', "NaN", '{"prompt": NaN}', '{"prompt": Infinity}',
        '{"prompt": "\\ud800"}',
        "[" * deep, '{"a":' * deep, '{"inputs":' + "[" * deep + "]" * deep + "}",
        '{"prompt": "' + "[" * deep + '"}',
        '{"prompt": "a", "seed": ' + "9" * rng.choice([30, 5000]) + "}", '{"prompt": "a", "prompt": "b"}',
        '{"prompt": 1e999}', '{"prompt": "a", "temperature": 1e999}', "\ufeff{}", "'a'", '{"prompt": "\x01"}',
    ])}  # fmt: skip


def _shape(rng: random.Random) -> Case:
    """Forms whose parts have other types than they should."""
    part = rng.choice([*ODD, [[]], [[1]], [None], {"columns": ["prompt"]}, {"columns": 1, "data": []}, ["a",
                       {}],
                       {"columns": ["a", "a"], "data": [["x", "y"]]}, {"prompt": []},
                       {"prompt": [[]]}])  # fmt: skip
    forms = [
        "inputs",
        "instances",
        "dataframe_records",
        "dataframe_split",
        "params",
        "messages",
        "input",
        "prompt",
    ]
    document = {rng.choice(forms): part for _ in range(rng.randint(1, 2))}
    return {"body": json.dumps(document)}


def _large(rng: random.Random) -> Case:
    """Long prompts, long fields beside many short ones, many rows."""
    size = rng.choice([3000, 9000, 30_000, 600_000])
    return rng.choice([
        {"body": {"prompt": ["a", size]}},
        {"body": {"inputs": [["a", size], ["b", 1]]}, "rows": 40},
        {"body": {"prompt": ["\u00e9", 5_000_000]}},
        {"kind": "text/csv", "body": {"csv": ["a", size]}},
    ])  # fmt: skip


def _body(case: Case) -> bytes:
    body = case["body"]
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if "csv" in body:
        return b"prompt\n" + body["csv"][0].encode() * body["csv"][1] + b"\n"
    if "prompt" in body:
        document: Any = {"prompt": body["prompt"][0] * body["prompt"][1], "max_tokens": 1}
    else:
        first, second = (text * size for text, size in body["inputs"])
        document = {"inputs": [first, *[second] * case["rows"]], "params": {"max_tokens": 1}}
    return json.dumps(document, ensure_ascii=False).encode()


class Answering:
    """A child of the predictor's that answers in this process."""

    has_ended = False

    def __init__(self, folder: Path) -> None:
        import torch

        from atelier.engine.inference.opened import read_generator
        from atelier.engine.io.artifact import ArtifactInput
        from atelier.infra.store.store import Store
        from tests.infra.records import Shelf
        from tests.infra.tracking.tiny_version import tiny_files

        shelf = Shelf(Store(str(folder / "store")))
        segment = shelf.trajectory("tiny", {}).fingerprint
        about = {"step": 1, "role": "tiny"}
        record = shelf.publish(
            "model", "tiny", {"trajectory": segment}, files=tiny_files(), summary=about, step=1
        )
        from atelier.engine.inference.serving import Desk

        source = ArtifactInput(url=shelf.store.address("model", record.fingerprint), record=record)
        generator = read_generator(source, folder, torch.device("cpu"))
        self._target = io.StringIO()
        self._desk = Desk(generator, self._target, MEMORY)
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any]) -> "Future[str]":
        answer: Future[str] = Future()
        with self._lock:
            self._target.truncate(self._target.seek(0))
            self._desk.take(json.dumps({"id": 1, **request}).encode())
            while self._desk.is_busy:
                self._desk.advance()
            told = json.loads(self._target.getvalue())
        if "text" in told:
            answer.set_result(told["text"])
        else:
            answer.set_exception(predictor.BadRequest(told["error"]))
        return answer


@cache
def answering() -> Answering:
    return Answering(Path(tempfile.mkdtemp(prefix="atelier-requests-")))


@cache
def server(guarded: Any) -> Any:
    """MLflow's application for the predictor."""
    import mlflow.pyfunc
    from mlflow.models import Model
    from mlflow.models.signature import ModelSignature
    from mlflow.pyfunc import scoring_server
    from mlflow.types import DataType, ParamSchema, ParamSpec

    kinds = {"max_tokens": DataType.long, "temperature": DataType.double, "top_p": DataType.double,
             "seed": DataType.long}  # fmt: skip
    specs = [ParamSpec(key, kind, predictor.DEFAULTS[key]) for key, kind in kinds.items()]
    about = Model(signature=ModelSignature(params=ParamSchema(specs)))
    about.add_flavor("python_function", loader_module="mlflow.pyfunc.model")

    class Predicting:
        def predict(self, model_input: Any, params: Any = None) -> list[str]:
            with mock.patch.object(predictor.Predictor, "_started", lambda self: answering()):
                return predictor.Predictor().predict(None, model_input, params)  # type: ignore[arg-type]

    model = mlflow.pyfunc.PyFuncModel(model_meta=about, model_impl=Predicting())
    return guarded(scoring_server.init(model), str(TOP / "typings"))


def ask(case: Case) -> tuple[int, bytes]:
    """Status and body of the answer."""
    headers = [(b"host", host.encode("latin-1")) for host in case["host"]]
    headers += [(b"content-type", case["kind"].encode("latin-1"))] if case["kind"] else []
    headers += [(b"origin", case["origin"].encode())] if "origin" in case else []
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": _body(case), "more_body": False}]

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        sent.append(message)

    path = case["path"]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": case["method"],
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"), "query_string": b"", "headers": headers,
        "scheme": "http",
        "server": ("127.0.0.1", PORT), "client": ("127.0.0.1", 9), "root_path": "",
    }  # fmt: skip
    asyncio.run(server(predictor.guarded)(scope, receive, send))
    status = next(message["status"] for message in sent if message["type"] == "http.response.start")
    return status, b"".join(message.get("body", b"") for message in sent)


def check(case: Case, folder: Path) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, body = ask(case)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MOST_GROWTH, f"the peak grew by {grown >> 10} MiB"
    is_own = len(case["host"]) == 1 and case["host"][0] in OWN
    is_own &= case.get("origin", f"http://127.0.0.1:{PORT}") == f"http://127.0.0.1:{PORT}"
    assert (status == 403) == (not is_own), f"status {status}"
    is_late = status == 504 and "max_tokens" in str(case["body"])  # of a machine that is busy with others
    assert status < 500 or is_late, f"status {status}: {body[:200]!r}"
    if is_late or not is_own or (case["path"], case["method"]) != ("/invocations", "POST"):
        return "refused" if status >= 400 else "works"
    found = json.loads(body)
    if status == 200:
        _check_texts(case, found)
        return "works"
    assert found["message"] and "\n" not in found["message"] and len(found["message"]) < 400, found["message"]
    assert "stack_trace" not in found, found["stack_trace"][-300:]
    is_read = case["kind"] in (*GOOD, "text/csv")
    assert "texts" not in case or not is_read, f"a good request is refused: {found['message']}"
    return "refused"


def _check_texts(case: Case, found: Any) -> None:
    """The answer to good texts has one a row, each that which the text gets alone."""
    texts = found["predictions"] if isinstance(found, dict) else found
    assert all(isinstance(text, str) for text in texts)
    for given, text in zip(case.get("texts", ()), texts, strict="texts" in case):
        document = {"prompt": given, "max_tokens": 3, "temperature": 0}
        alone = ask({"host": OWN[:1], "method": "POST", "path": "/invocations", "kind": GOOD[0],
                     "body": json.dumps(document)})  # fmt: skip
        assert json.loads(alone[1])[0].startswith(text.rstrip("\ufffd")), (given, text)


def broken() -> AbstractContextManager[object]:
    """Any host is answered and bodies are MLflow's to read."""
    return mock.patch.object(predictor, "guarded", lambda app, code: predictor.noticing(app))
