"""Code file of a registered model (MLflow "models from code"): answers prompts with a child process, so it
needs no torch itself.

It is copied beside the weights and imports nothing of this project: the artifact `model` is a folder with
record.json and its files, the artifact `code` a folder with the engine and the other project roots that made
them, so a version can be loaded without the store or a checkout.

    mlflow.pyfunc.load_model("models:/student_a@latest").predict(["def "], params={"max_tokens": 40})
    mlflow models serve -m models:/student_a@latest --env-manager local

Prompts of several requests and threads go to the one child, which computes them together.
"""

import asyncio
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INTERNAL_ERROR, INVALID_PARAMETER_VALUE
from mlflow.pyfunc import (  # the documented names
    PythonModel,  # type: ignore[reportPrivateImportUsage]
    PythonModelContext,  # type: ignore[reportPrivateImportUsage]
)

Value = str | int | float

DEFAULTS: dict[str, int | float] = {"max_tokens": 64, "temperature": 0.8, "top_p": 1.0, "seed": 1}
HOSTS = "ATELIER_SERVE_HOSTS"  # allowed host names of the server, besides loopback and its address
MOST = 2**63  # upper bound of numbers in requests
MOST_DIGITS = 100  # characters of a number given as text


class Fault(MlflowException):
    """An error of one line, sent as it is; MLflow would put the whole input before it."""

    def serialize_as_json(self) -> str:
        return json.dumps({"error_code": self.error_code, "message": str(self)})


class BadRequest(Fault, ValueError):
    """The request is invalid: status 400."""

    def __init__(self, message: str) -> None:
        super().__init__(message, INVALID_PARAMETER_VALUE)


class GeneratorEnded(Fault, RuntimeError):
    """The generating process has ended: status 500."""

    def __init__(self, message: str) -> None:
        super().__init__(message, INTERNAL_ERROR)


# Any: MLflow passes any input on
def requests_of(model_input: Any, params: Mapping[str, Value]) -> list[dict[str, Value]]:
    """One request per row. `model_input`: a text, a list of texts or dicts, a dict (of values or of lists),
    or a DataFrame with `prompt`. Raises BadRequest for unknown keys, a missing prompt, values of other types.
    """
    rows = rows_of(model_input)
    return [
        request_of(row, params, f"row {number}: " if len(rows) > 1 else "")
        for number, row in enumerate(rows, 1)
    ]


def rows_of(model_input: Any) -> list[Any]:
    """The given rows: texts or dicts."""
    if hasattr(model_input, "to_dict"):  # a DataFrame or Series; pandas itself is not needed here
        columns = model_input.to_frame("prompt") if not hasattr(model_input, "columns") else model_input
        rows = columns.to_dict("records")
        if rows and "prompt" not in rows[0]:
            rows = [{"prompt": next(iter(row.values()))} if len(row) == 1 else row for row in rows]
        return rows
    model_input = plain(model_input)
    if isinstance(model_input, dict):
        given = {key: plain(value) for key, value in model_input.items()}
        many = {key: value for key, value in given.items() if isinstance(value, list)}
        counts = {len(value) for value in many.values()} or {1}
        if len(counts) > 1:
            told = ", ".join(f"{key} {len(value)}" for key, value in many.items())
            raise BadRequest(f"the lists of a request must have equal lengths; got {shown(0, told)}")
        return [
            {key: many[key][i] if key in many else value for key, value in given.items()}
            for i in range(counts.pop())
        ]
    return [model_input] if isinstance(model_input, str) else list(model_input)


def request_of(row: Any, params: Mapping[str, Value], place: str) -> dict[str, Value]:
    """A row with defaults for missing values; `place` is the beginning of error messages."""
    row = dict(row) if isinstance(row, dict) else {"prompt": row}
    if isinstance(row.get("prompt"), dict) and len(row) == 1:
        row = row["prompt"]  # put there by request_body.py
    unknown = sorted(map(str, set(row) - {"prompt", *DEFAULTS}))
    if unknown or "prompt" not in row:
        raise BadRequest(
            f"{place}a request has `prompt` and any of {', '.join(DEFAULTS)}; "
            f"got {shown(0, ', '.join(map(str, row)) or 'nothing')}"
        )
    row = {key: plain(value) for key, value in row.items()}
    prompt = row.pop("prompt")
    if not isinstance(prompt, str):  # a number may have been text: 007, 1e5
        raise BadRequest(f"{place}prompt is {shown(prompt)}; give a text")
    given = {key: value for key, value in row.items() if value is not None and value == value}
    values = {**DEFAULTS, **params, **given}
    return {"prompt": prompt} | {key: number_of(key, value, place) for key, value in values.items()}


def number_of(key: str, value: Any, place: str) -> int | float:
    """The value of a key of DEFAULTS, in its type."""
    is_whole, text = isinstance(DEFAULTS[key], int), str(value)
    with suppress(ArithmeticError):  # not a number, or one that Decimal cannot compare
        number = Decimal(text if len(text) <= MOST_DIGITS else "nan")
        if number.is_finite() and abs(number) < MOST and not (is_whole and number % 1):
            return int(number) if is_whole else float(number)
    raise BadRequest(f"{place}{key} is {shown(value)}; give a {'whole ' if is_whole else ''}number")


def plain(value: Any) -> Any:
    """Convert arrays, which MLflow's server makes of inputs, to lists and numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def shown(value: Any, text: str = "") -> str:
    return text if len(text := text or repr(value)) <= 60 else f"{text[:60]}..."


class Client:
    """A client that waits for an answer. `leave` runs the callbacks of `on_leave`, once."""

    def __init__(self) -> None:
        self._lock, self._has_left = threading.Lock(), False
        self._then: list[Callable[[], None]] = []

    def on_leave(self, act: Callable[[], None]) -> None:
        with self._lock:
            if not self._has_left:
                self._then.append(act)
                return
        act()

    def leave(self) -> None:
        with self._lock:
            self._has_left, acts, self._then = True, self._then, []
        for act in acts:
            act()


CLIENT: ContextVar[Client | None] = ContextVar("client", default=None)  # of the current request


# Any: types of ASGI
def noticing(app: Any) -> Any:
    """An ASGI application whose requests have a `CLIENT`; `leave` is called when the client disconnects."""

    async def noticed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        client, watchers = Client(), list[asyncio.Task[None]]()
        CLIENT.set(client)

        def leave() -> None:
            # not a thread of asyncio: those may all wait for answers
            threading.Thread(target=client.leave, daemon=True).start()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            leave()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body") and not watchers:
                watchers.append(asyncio.create_task(watch()))
            return message

        try:
            await app(scope, received, send)
        finally:
            for watcher in watchers:
                watcher.cancel()
            leave()  # also when MLflow timed the request out

    return noticed


def guarded(app: Any, code: str) -> Any:
    """MLflow's server behind the request filters of the engine in `code`: own host names and origins, limited
    bodies. It also detects clients that disconnect, which MLflow does not report to the model.
    """
    gate, bodies = (part(code, name) for name in ("request_filter", "request_body"))
    limited = gate.BodyFilter(
        noticing(app), "/invocations", bodies.plain_body, bodies.BodyRefused, bodies.MOST_BYTES
    )
    more = os.environ.get(HOSTS, "").replace(",", " ").split()
    return gate.RequestFilter(limited, more=more, advice=f"; {HOSTS} names others")


def part(code: str, name: str) -> Any:
    """A self-contained file of the engine, loaded from the version's own code."""
    spec = importlib.util.spec_from_file_location(name, f"{code}/atelier/engine/io/{name}.py")
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def guard_server(code: str) -> None:
    """Guard MLflow's server if this process is building one."""
    if "mlflow.pyfunc.scoring_server.app" not in sys.modules:
        return
    from fastapi import FastAPI

    build = FastAPI.build_middleware_stack
    FastAPI.build_middleware_stack = lambda self: guarded(build(self), code)  # for this server alone


class Child:
    """A child process that generates text: JSON lines in and out; requests have numbers, answers come when
    each is done. It ends when its standard input ends.
    """

    def __init__(self, model: str, code: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="atelier-predict-")
        folder = Path(self._scratch.name)
        run = {"schema": 1, "task": "generate", "version": 1, "config": {"serve": True}, "outputs": {}}
        run |= {"inputs": {"model": model}, "scratch": str(folder / "scratch"), "seed": 1}
        run["roots"] = [{"name": p.name, "folder": str(p)} for p in sorted(Path(code, "roots").glob("*"))]
        (folder / "scratch").mkdir()
        (folder / "run.json").write_text(json.dumps(run))
        self._errors = (folder / "errors.txt").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "atelier.engine.generate", str(folder / "run.json")],
            cwd=code,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={"GOMP_SPINCOUNT": "10000", **os.environ, "PYTHONPATH": code, "PYTHONUNBUFFERED": "1"},
        )
        self._lock = threading.Lock()  # for the fields below and the child's input
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[str]] = {}
        self._end = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        return bool(self._end) or self._process.poll() is not None

    def ask(self, request: Mapping[str, Value]) -> Future[str]:
        """The future text; its exception is BadRequest or GeneratorEnded (also if the client left)."""
        answer: Future[str] = Future()
        assert self._process.stdin is not None
        with self._lock:
            if self._end:
                answer.set_exception(GeneratorEnded(self._end))
                return answer
            number = next(self._numbers)
            self._waiting[number] = answer
            with suppress(BrokenPipeError):  # then `_read` sees the end as well and reports the reason
                self._process.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
                self._process.stdin.flush()
        client = CLIENT.get()
        if client is not None:
            client.on_leave(lambda: self._leave(number))
        return answer

    def _leave(self, number: int) -> None:
        """Cancel a request whose client has left, which frees its memory for others."""
        assert self._process.stdin is not None
        with self._lock:
            answer = self._waiting.pop(number, None)
            if answer is None:
                return
            with suppress(BrokenPipeError, ValueError):  # it has ended
                self._process.stdin.write(json.dumps({"id": number, "leave": True}).encode() + b"\n")
                self._process.stdin.flush()
        answer.set_exception(GeneratorEnded("the client has left"))

    def _read(self) -> None:
        """Deliver every answer to its request; at the end fail all others with the reason."""
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            self._scratch.cleanup()  # it was read; a server killed by a signal could not remove it later
            try:
                answer = json.loads(line)
            except ValueError:  # a partial line of a killed process
                continue
            with self._lock:
                waiting = self._waiting.pop(answer.get("id", 0), None)
            if waiting is None:  # the error that ends the child, or the client has left
                said = answer.get("error", said)
            elif "text" in answer:
                waiting.set_result(answer["text"])
            else:
                waiting.set_exception(BadRequest(answer["error"]))
        code = self._process.wait()
        why = said or self._last_words()
        with self._lock:
            self._end = f"the generating process ended with exit code {code}" + (f": {why}" if why else "")
            left, self._waiting = self._waiting, {}
        for answer in left.values():
            answer.set_exception(GeneratorEnded(self._end))

    def _last_words(self) -> str:
        """The last line of the child's standard error, all of which goes to this process's."""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        if text:
            print(text, file=sys.stderr)
        return text.splitlines()[-1] if text else ""

    def close(self) -> None:
        """Stop the child: kill it if a request is waiting, else close its input."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        if self._waiting:
            self._process.kill()
        with suppress(BrokenPipeError):  # an unread request of a process that has ended
            stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        stdout.close()
        self._errors.close()
        self._scratch.cleanup()


class Predictor(PythonModel):
    """Generates text for prompts from several threads. The child starts with the first prompt and lives as
    long as this object.
    """

    # prevents MLflow's warning about a missing input type hint: there are four input types
    _skip_type_hint_validation = True

    def __init__(self) -> None:
        self._child: Child | None = None
        self._end_child = weakref.finalize(self, str)  # no child yet
        self._one_at_a_time = threading.Lock()
        self._model = self._code = ""

    def load_context(self, context: PythonModelContext) -> None:
        self._model = str(Path(context.artifacts["model"]).absolute())
        self._code = str(Path(context.artifacts["code"]).absolute())
        guard_server(self._code)

    def predict(
        self, context: PythonModelContext, model_input, params: dict[str, Value] | None = None
    ) -> list[str]:
        requests = requests_of(model_input, params or {})
        if not requests:
            return []
        child = self._started()
        answers = [child.ask(request) for request in requests]
        texts = []
        for number, answer in enumerate(answers, 1):
            try:
                texts.append(answer.result())
            except BadRequest as error:
                raise BadRequest(f"row {number}: {error}" if len(answers) > 1 else str(error)) from None
        return texts

    def _started(self) -> Child:
        """The child, restarted if it has ended."""
        with self._one_at_a_time:
            if self._child is None or self._child.has_ended:
                self._end_child()
                self._child = Child(self._model, self._code)
                self._end_child = weakref.finalize(self, self._child.close)
            return self._child

    def close(self) -> None:
        """Stop the child; a later prompt starts another."""
        with self._one_at_a_time:
            self._end_child()
            self._child = None


set_model(Predictor())
