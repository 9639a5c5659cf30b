"""Chat templates: the Jinja text that turns messages into what a model reads, rendered as by
transformers.

A template comes with a model and is not trusted. It runs in Jinja's immutable sandbox, without loaders, files
or attributes that begin with an underscore. A rendering has CPU_S seconds of CPU time, MORE_BYTES of memory
beyond what the process has, and MOST characters of text. Not bounded: memory where /proc is missing, time
off the main thread, and one single operation of Python's C code, which the clock cannot interrupt.
"""

import json
import re
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TypedDict, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError, DataError, printable

CPU_S = 5.0
MORE_BYTES = 2 << 30
MOST = 1 << 26
MOST_SOURCE = 1 << 20  # characters of a template
LARGEST_POWER = 1 << 16
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class ChatMessage(TypedDict):
    """One message of a conversation; `role`: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Rendered:
    """`spans`: characters inside {% generation %} blocks; None where the template has none of them."""

    text: str
    spans: tuple[tuple[int, int], ...] | None


class ChatTemplate:
    """`variables` are names that the template may use, such as bos_token; `now` is what it is told of the
    time, None refuses to say; `date` the key that sets it. Raises ConfigError for a template that is none.
    """

    def __init__(
        self,
        source: str,
        place: str,
        variables: Mapping[str, str],
        now: datetime | None = None,
        date: str = "chats.date",
    ) -> None:
        if len(source) > MOST_SOURCE:
            raise ConfigError(place, f"has {len(source)} characters, more than {MOST_SOURCE}")
        self._place, self._variables, self._has_blocks = (
            place,
            dict(variables),
            bool(GENERATION.search(source)),
        )
        self._blocks: list[tuple[int, str]] = []
        self._parts: list[str] = []
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _to_json
        del environment.filters["random"], environment.globals["lipsum"]  # another text every time
        environment.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _clock(now, date),
            "dict": _Dict(),
            "namespace": _Names,
            GENERATED: self._generated,
        }
        try:
            with _bounded():
                self._template = environment.from_string(source)
        except Exception as error:  # of whatever type: the template is not trusted
            raise ConfigError(place, f"is no chat template ({_said(error)})", "mend or remove it") from None

    def render(self, messages: Sequence[ChatMessage], *, is_prompt: bool = False) -> Rendered:
        """The text of `messages`; with `is_prompt` and what begins an answer. Raises DataError where the
        template fails or refuses them, or does not keep to its bounds.
        """
        self._blocks.clear()
        self._parts.clear()
        given = [dict(message) for message in messages]
        length = 0
        try:
            with _bounded():
                for part in self._template.generate(
                    messages=given,
                    tools=None,
                    documents=None,
                    add_generation_prompt=is_prompt,
                    **self._variables,
                ):
                    self._parts.append(part)
                    length += len(part)
                    if length > MOST:
                        raise DataError(f"more than {MOST} characters")
        except Exception as error:
            raise DataError(f"{self._place}: {_said(error)}") from None
        text = "".join(self._parts)
        spans = tuple((begin, begin + len(block)) for begin, block in self._blocks if block)
        is_whole = all(text[begin : begin + len(block)] == block for begin, block in self._blocks)
        if self._has_blocks and not is_whole:
            raise DataError(f"{self._place}: has a generation block inside of what it writes later")
        return Rendered(text, spans if self._has_blocks else None)

    def _generated(self, block: str) -> str:
        self._blocks.append((sum(map(len, self._parts)), block))
        return block


GENERATED = "\0generated"  # no name that a template could spell


class _Generation(Extension):
    """{% generation %}: what the assistant writes."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_told"), [], [], body).set_lineno(line)

    def _told(self, caller: Macro) -> str:
        told = cast(Callable[[str], str], self.environment.globals[GENERATED])
        return told(caller())


class _Sandbox(ImmutableSandboxedEnvironment):
    """Powers of whole numbers take a time that nothing interrupts: large ones are refused."""

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
    """`dict` without the attributes of the type."""

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
                "asks for today's date (strftime_now), and its text would change from day to day; "
                f"{date}=2024-07-26 tells it one"
            )
        return now.strftime(format)

    return strftime_now


def _said(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"takes more than {MORE_BYTES >> 30} GiB of memory"
    message = printable(" ".join(str(error).split()))
    return (
        message
        if isinstance(error, jinja2.TemplateError | DataError)
        else f"{type(error).__name__}: {message}"
    )


@contextmanager
def _bounded() -> Iterator[None]:
    """Limits of time and memory, of this thread and process, while a template runs."""
    is_main = threading.current_thread() is threading.main_thread()
    memory = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        wanted = pages * resource.getpagesize() + MORE_BYTES
        limits = [wanted, *(limit for limit in memory if limit != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), memory[1]))
    before = signal.signal(signal.SIGVTALRM, _late) if is_main else None
    if is_main:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        yield
    finally:
        if is_main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def _late(number: int, frame: FrameType | None) -> None:
    raise jinja2.TemplateError(f"takes more than {CPU_S:.0f} seconds")
