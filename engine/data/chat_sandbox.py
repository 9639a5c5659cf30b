"""Render chat templates in a separate process (engine/io/limited_process.py).

Templates come with models and are not trusted (engine/data/jinja_sandbox.py).
"""

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

from atelier.engine.config.base import Json
from atelier.engine.config.document import section_of
from atelier.engine.config.error import ConfigError
from atelier.engine.data.jinja_sandbox import SandboxEnvironment, said, write
from atelier.engine.io.limited_process import Limits, answer_all

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
Renders = Sequence[tuple[Sequence[Mapping[str, str]], bool]]  # messages, is_prompt


class Sandbox:
    """A template that was sent to this process. Raises ConfigError if it is not valid."""

    def __init__(self, source: str, place: str, variables: Mapping[str, str], now: str, date: str) -> None:
        self._place, self._variables = place, variables
        self._has_blocks = bool(GENERATION.search(source))
        self._blocks: list[tuple[int, str]] = []
        self._parts: list[str] = []
        environment = SandboxEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(datetime.fromisoformat(now) if now else None, date),
            GENERATED: self._generated,
        }
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # any type: the template is not trusted
            raise ConfigError(place, f"is not a chat template ({said(error)})", "fix or remove it") from None

    def rendered(self, messages: Sequence[Mapping[str, str]], is_prompt: bool) -> dict[str, Json]:
        """`text`, and the `spans` of generation blocks if the template has some; or an `error`."""
        self._blocks.clear()
        self._parts.clear()
        try:
            self._write(messages, is_prompt)
        except MemoryError:
            raise
        except Exception as error:
            return {"error": f"{self._place}: {said(error)}"}
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
        others = {"tools": None, "documents": None, "add_generation_prompt": is_prompt}
        write(self._template, self._parts, {"messages": messages, **others, **self._variables})

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


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _clock(now: datetime | None, date: str) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if now is None:
            raise jinja2.TemplateError(
                "asks for today's date (strftime_now), so its text would differ each day; give a date:"
                f" {date}=2024-07-26"
            )
        return now.strftime(format)

    return strftime_now
