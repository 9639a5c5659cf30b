"""Render chat templates in a separate process (engine/io/limited_process.py).

Templates come with models and are not trusted. They run in Jinja's immutable sandbox, without loaders, files
or attributes that begin with an underscore. A single operation of Python's C code may take hours; only ending
the process interrupts it.
"""

import json
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError, DataError, printable
from atelier.engine.io.limited_process import Limits, answer_all, fault

MOST = 1 << 26  # characters of rendered text
LARGEST_POWER = 1 << 16
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
Renders = Sequence[tuple[Sequence[Mapping[str, str]], bool]]  # messages, is_prompt


class Sandbox:
    """A template that was sent to this process. Raises ConfigError if it is not valid."""

    def __init__(self, source: str, place: str, variables: Mapping[str, str], now: str, date: str) -> None:
        self._place, self._variables = place, variables
        self._has_blocks = bool(GENERATION.search(source))
        self._blocks: list[tuple[int, str]] = []
        self._parts: list[str] = []
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        del environment.filters["random"], environment.globals["lipsum"]  # their results differ each time
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(datetime.fromisoformat(now) if now else None, date),
            "dict": _Dict(),
            "namespace": _Names,
            GENERATED: self._generated,
        }
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # any type: the template is not trusted
            raise ConfigError(place, f"is not a chat template ({_said(error)})", "fix or remove it") from None

    def rendered(self, messages: Sequence[Mapping[str, str]], is_prompt: bool) -> dict[str, Json]:
        """`text`, and the `spans` of generation blocks if the template has some; or an `error`."""
        self._blocks.clear()
        self._parts.clear()
        try:
            self._write(messages, is_prompt)
        except MemoryError:
            raise
        except Exception as error:
            return {"error": f"{self._place}: {_said(error)}"}
        text = "".join(self._parts)
        try:
            text.encode()
        except UnicodeEncodeError:
            return {"error": f"{self._place}: writes half of a surrogate pair, which is not text"}
        if not self._has_blocks:
            return {"text": text}
        if not all(text[begin : begin + len(block)] == block for begin, block in self._blocks):
            return {"error": f"{self._place}: writes a generation block inside later text"}
        return {"text": text, "spans": [[at, at + len(block)] for at, block in self._blocks if block]}

    def _write(self, messages: Sequence[Mapping[str, str]], is_prompt: bool) -> None:
        length = 0
        for part in self._template.generate(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=is_prompt,
            **self._variables,
        ):
            self._parts.append(part)
            length += len(part)
            if length > MOST:
                raise DataError(f"more than {MOST} characters")

    def _generated(self, block: str) -> str:
        self._blocks.append((sum(map(len, self._parts)), block))
        return block


def serve(channel: socket.socket, limits: Limits) -> None:
    """Receive templates and requests; render with the last template."""
    taken: list[Sandbox] = []

    def act(request: Json) -> Json:
        if isinstance(request, Mapping):
            taken[:] = [Sandbox(**cast("dict[str, Any]", section_of(request)))]
            return None
        return [taken[0].rendered(messages, is_prompt) for messages, is_prompt in cast(Renders, request)]

    answer_all(channel, limits, act)


GENERATED = "\0generated"  # a name that no template can spell


class _Generation(Extension):
    """{% generation %}: marks the assistant's text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_told"), [], [], body).set_lineno(line)

    def _told(self, caller: Macro) -> str:
        told = cast(Callable[[str], str], self.environment.globals[GENERATED])
        return told(caller())


class _Environment(ImmutableSandboxedEnvironment):
    """Refuses large powers of whole numbers, whose computation cannot be interrupted."""

    intercepted_binops = frozenset(("**",))

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        if operator == "**" and not all(
            isinstance(one, int | float) and abs(one) < LARGEST_POWER for one in (left, right)
        ):
            raise jinja2.TemplateError("a power of large numbers")
        return super().call_binop(context, operator, left, right)


class _Dict:
    """`dict` without the type's attributes."""

    def __call__(self, *items: object, **more: object) -> object:
        return dict(*items, **more)

    def fromkeys(self, keys: Sequence[object], value: object = None) -> dict[object, object]:
        return dict.fromkeys(keys, value)


class _Names(Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*given: object, **more: object) -> None:
        self, *items = given
        names = dict(*items, **more)
        for name in names:
            _check_name(name)
        Namespace.__init__(cast(Namespace, self), names)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace with the name {name!r}")


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _clock(now: datetime | None, date: str) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if now is None:
            raise jinja2.TemplateError(
                "asks for today's date (strftime_now), so its text would differ each day; give a date:"
                f" {date}=2024-07-26"
            )
        return now.strftime(format)

    return strftime_now


def _said(error: Exception) -> str:
    is_told = isinstance(error, jinja2.TemplateError | DataError)
    return printable(" ".join(str(error).split())) if is_told else fault(error)
