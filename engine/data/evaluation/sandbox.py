"""Render the templates of evaluation tasks in a separate process (engine/io/limited_process.py), as
lm-evaluation-harness 0.4.13 does, but in a sandbox (engine/data/jinja_sandbox.py).

Also runs the Python functions of a task whose source is allowed to run code. The process bounds their memory
and time; it is no sandbox for them.

Requests: the arguments of Templates once, then {"rows": [...]} to render, or {"process_docs": [...]}.
Modes: text, target, choice (what lm-eval makes of a rendered doc_to_...), plain.
"""

import ast
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, cast

import jinja2
from jinja2.filters import FILTERS

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.data.jinja_sandbox import SandboxEnvironment, said, write
from atelier.engine.io.limited_process import Limits, answer_all, fault

PROCESS = "process_docs"
Value = Any  # that a template or function gives
Function = Callable[..., Value]


class Templates:
    """Templates and functions by name. Raises ConfigError for one that is not valid.

    has_options: a number that doc_to_text or doc_to_target gives is then the place of an option.
    """

    def __init__(
        self,
        templates: Mapping[str, tuple[str, str]],
        place: str,
        has_options: bool,
        code: str,
        functions: Mapping[str, str],
    ) -> None:
        self._has_options = has_options
        self._environment = SandboxEnvironment(undefined=_Unknown, keep_trailing_newline=True)
        self._environment.filters |= {"regex_replace": _regex_replace, "tojson": FILTERS["tojson"]}
        self._templates = {
            name: (mode, self._compiled(text, f"{place}.{name}")) for name, (mode, text) in templates.items()
        }
        module = _module(code, place) if functions else None
        self._functions = {name: _function(module, one, place) for name, one in functions.items()}

    def rendered(self, row: Mapping[str, Json]) -> dict[str, Json]:
        """The values by name; or an `error` of `name`, with `missing` if the template asks for an unknown
        field.
        """
        values: dict[str, Json] = {}
        for name, (mode, template) in self._templates.items():
            try:
                parts: list[str] = []
                write(template, parts, row)
                values[name] = self._value(mode, "".join(parts))
            except MemoryError:
                raise
            except Exception as error:  # any type: the template is not trusted
                is_missing = isinstance(error, jinja2.UndefinedError)
                return {"error": said(error), "name": name, "missing": is_missing}
        for name, function in self._functions.items():
            if name == PROCESS:
                continue
            try:
                values[name] = _plain(function(dict(row)))
            except Exception as error:  # any type: the function is the user's
                return {"error": fault(error), "name": name, "missing": False}
        return values

    def processed(self, rows: list[dict[str, Json]]) -> Json:
        """What `process_docs` makes of all rows of a split. Raises DataError if it fails."""
        try:
            return _plain([dict(row) for row in self._functions[PROCESS](_Rows(rows))])
        except Exception as error:  # any type: the function is the user's
            raise DataError(f"{PROCESS} fails ({fault(error)})") from None

    def _compiled(self, text: str, place: str) -> jinja2.Template:
        try:
            return self._environment.from_string(text)
        except MemoryError:
            raise
        except Exception as error:  # any type: the template is not trusted
            raise ConfigError(place, f"is not a template ({said(error)})", "fix it") from None

    def _value(self, mode: str, text: str) -> Json:
        text.encode()  # half of a surrogate pair is not text
        if mode == "choice":
            try:
                return _plain(ast.literal_eval(text))
            except (ValueError, SyntaxError, TypeError, RecursionError):
                raise DataError(f"gives no list of options, but {text[:80]!r}") from None
        if mode in ("text", "target") and self._has_options and text.isascii() and text.isdigit():
            return text if len(text) > 9 or (text[0] == "0" and len(text) > 1) else int(text)
        if mode == "target" and len(text) >= 2 and text[0] == "[" and text[-1] == "]":
            try:
                return _plain(ast.literal_eval(text))
            except (ValueError, SyntaxError):
                return text
        return text


class _Unknown(jinja2.StrictUndefined):
    """A field that the row does not have: an error also inside a list."""

    __repr__ = jinja2.StrictUndefined.__str__


class _Rows:
    """As much of a `datasets.Dataset` as functions of tasks usually need."""

    def __init__(self, rows: list[dict[str, Value]]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Value]:
        return self._rows[place]

    def map(self, function: Function) -> "_Rows":
        return _Rows([{**row, **(function(dict(row)) or {})} for row in self._rows])

    def filter(self, function: Function) -> "_Rows":
        return _Rows([row for row in self._rows if function(dict(row))])


def _module(code: str, place: str) -> ModuleType:
    """The module with the task's functions. Many import `datasets` for an annotation only."""
    stub = ModuleType("datasets")
    vars(stub).update(Dataset=_Rows)
    sys.modules.setdefault("datasets", stub)
    module = ModuleType("task")
    try:
        exec(compile(code, f"{place} (its code)", "exec"), vars(module))
    except Exception as error:  # any type: the code is the user's
        raise ConfigError(place, f"its code cannot be imported ({fault(error)})") from None
    return module


def _function(module: ModuleType | None, name: str, place: str) -> Function:
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(place, f"its code has no function {name}")
    return found


def _plain(value: Value) -> Json:
    """The value, if it is JSON with text as keys. Raises DataError."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(one) for key, one in value.items()}
    raise DataError(f"gives a {type(value).__name__}, which is no text, number or list")


def _regex_replace(text: str, pattern: str, repl: str, count: int = 0) -> str:
    return re.sub(pattern, repl, text, count=count)


def serve(channel: socket.socket, limits: Limits) -> None:
    """Receive templates, then rows to render with them."""
    taken: list[Templates] = []

    def act(request: Json) -> Json:
        asked = section_of(request)
        if "templates" in asked:
            taken[:] = [Templates(**cast("dict[str, Any]", asked))]
            return None
        rows = cast("list[dict[str, Json]]", asked[PROCESS if PROCESS in asked else "rows"])
        if PROCESS in asked:
            return taken[0].processed(rows)
        return [taken[0].rendered(row) for row in rows]

    answer_all(channel, limits, act)
