"""Code file of a registered model (MLflow "models from code"): answers prompts with a child process, so it
needs no torch itself.

It is copied beside the weights and imports nothing of this project: the artifact `model` is a folder with
record.json and its files, the artifact `code` a folder with the engine that made them, so a version can be
loaded without the store or a checkout.

    mlflow.pyfunc.load_model("models:/student_a@latest").predict(["def "], params={"max_tokens": 40})
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mlflow.models import set_model
from mlflow.pyfunc import (  # the documented names
    PythonModel,  # type: ignore[reportPrivateImportUsage]
    PythonModelContext,  # type: ignore[reportPrivateImportUsage]
)

Value = str | int | float

DEFAULTS: dict[str, int | float] = {"max_tokens": 64, "temperature": 0.8, "top_p": 1.0, "seed": 1}


# Any: MLflow gives whatever its caller gave
def requests_of(model_input: Any, params: Mapping[str, Value]) -> list[dict[str, Value]]:
    """One request per row. `model_input`: a text, a list of texts or dicts, a dict (of values or of lists),
    or a DataFrame with `prompt`. Raises ValueError for unknown keys or a missing prompt.
    """
    if hasattr(model_input, "to_dict"):  # a DataFrame or Series; pandas itself is not needed here
        columns = model_input.to_frame("prompt") if not hasattr(model_input, "columns") else model_input
        rows = columns.to_dict("records")
        if rows and "prompt" not in rows[0]:
            rows = [{"prompt": next(iter(row.values()))} for row in rows]
    elif isinstance(model_input, dict):
        many = {key: value for key, value in model_input.items() if isinstance(value, list)}
        count = max((len(value) for value in many.values()), default=1)
        rows = [
            {key: many[key][i] if key in many else value for key, value in model_input.items()}
            for i in range(count)
        ]
    else:
        rows = [model_input] if isinstance(model_input, str) else list(model_input)
    result = []
    for row in rows:
        row = dict(row) if isinstance(row, dict) else {"prompt": row}
        unknown = sorted(set(row) - {"prompt", *DEFAULTS})
        if unknown or "prompt" not in row:
            raise ValueError(
                f"a request has `prompt` and any of {', '.join(DEFAULTS)}; "
                f"got {', '.join(map(str, row)) or 'nothing'}"
            )
        values = {
            **DEFAULTS,
            **params,
            **{key: value for key, value in row.items() if value is not None and value == value},
        }
        result.append(
            {
                key: type(DEFAULTS[key])(value) if key in DEFAULTS else str(value)
                for key, value in values.items()
            }
        )
    return result


class Child:
    """A child process that generates text: JSON lines in and out. Ends when its standard input does."""

    def __init__(self, model: str, code: str) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="atelier-predict-")
        folder = Path(self._scratch.name)
        run = {
            "schema": 1,
            "task": "generate",
            "version": 1,
            "config": {"serve": True},
            "inputs": {"model": model},
            "outputs": {},
            "scratch": str(folder / "scratch"),
            "seed": 1,
        }
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

    def ask(self, request: Mapping[str, Value]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(self._why()) from None
        for line in self._process.stdout:
            answer = json.loads(line)
            if "error" in answer:
                raise ValueError(answer["error"])
            if "text" in answer:
                return answer["text"]
        raise RuntimeError(self._why())

    def _why(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read().decode(errors="replace").strip().splitlines()[-15:]
        return "\n".join([f"the generating process ended with exit code {code}", *tail])

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # an unread request of a process that has ended
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._scratch.cleanup()


class Predictor(PythonModel):
    """Generates text for prompts. The child starts with the first prompt and lives as long as this object."""

    # no MLflow warning at every load that no input type hint is given: there are four input types
    _skip_type_hint_validation = True

    def __init__(self) -> None:
        self._child: Child | None = None
        self._one_at_a_time = threading.Lock()
        self._model = self._code = ""

    def load_context(self, context: PythonModelContext) -> None:
        self._model = str(Path(context.artifacts["model"]).absolute())
        self._code = str(Path(context.artifacts["code"]).absolute())

    def predict(
        self, context: PythonModelContext, model_input, params: dict[str, Value] | None = None
    ) -> list[str]:
        requests = requests_of(model_input, params or {})
        with self._one_at_a_time:
            if self._child is None:
                self._child = Child(self._model, self._code)
                weakref.finalize(self, self._child.close)
            try:
                return [self._child.ask(request) for request in requests]
            except RuntimeError:
                self.close()  # the next call starts a new one
                raise

    def close(self) -> None:
        """End the child; a later prompt starts another."""
        if self._child is not None:
            self._child.close()
            self._child = None


set_model(Predictor())
