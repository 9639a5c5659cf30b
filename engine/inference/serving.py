"""Answer JSON requests, one per line, as they arrive. Rows of several requests are computed together; a
waiting one joins at the next token after another ends. Answers do not depend on other requests
(engine/inference/rows.py).
"""

import json
import select
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple, TextIO

from atelier.engine.config.base import parse
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.config.generation import Request
from atelier.engine.config.message import Continuation
from atelier.engine.data.control_prompt import Prefix
from atelier.engine.inference.generator import TOGETHER, Generator
from atelier.engine.inference.rows import SLOTS, Rows, ServedRow
from atelier.engine.io.machine import num_cores
from atelier.engine.io.process import say

LONGEST = 500_000  # characters of a prompt and its wishes: tokens take up to 350 bytes per character
WAY_OUT = 'send {"prompt": "..."} on one line'


@dataclass
class Ticket:
    """A request's `id` (None if it has none) and its answer, once known."""

    number: int | None
    answer: Continuation | None = None


class ServedRequest(NamedTuple):
    """A request that can be answered. `room`: bytes of its keys and values; `reading`: bytes of a pass over
    its prompt; one such pass runs at a time.
    """

    ticket: Ticket
    request: Request
    before: Prefix
    room: int
    reading: int


def serve(generator: Generator, lines: Iterable[bytes], target: TextIO, *, memory: int) -> None:
    """Answer every line with one line: requests with an `id` when done, with that id, others in order. A
    failing request gets its error and affects no other. `memory`: bytes of keys and values of all rows;
    requests beyond it wait.

    Returns after the last line is answered, or if the reader is gone.
    """
    inbox: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_read, args=(lines, inbox), daemon=True).start()
    desk, has_more = Desk(generator, target, memory), True
    while has_more or desk.is_busy:
        while has_more and not (desk.is_busy and inbox.empty()):
            line = inbox.get()
            if line is None:
                has_more = False
            else:
                desk.take(line)
        if not has_more and _is_left(target):
            return
        desk.advance()


def _read(lines: Iterable[bytes], inbox: "SimpleQueue[bytes | None]") -> None:
    try:
        for line in lines:
            inbox.put(line)
    finally:
        inbox.put(None)


def _is_left(target: TextIO) -> bool:
    """Whether the pipe's reader, the asking process, is gone."""
    try:
        number = target.fileno()
    except OSError:  # not a file
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class Departure(NamedTuple):
    """{"id": 3, "leave": true}: the answer to request 3 is no longer needed."""


def parse_request(line: bytes) -> tuple[int | None, Request | Departure | ConfigError]:
    """The request's `id` (None if it has none), and the request or its error."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError includes invalid UTF-8
        return None, ConfigError("request", f"not JSON ({error})", WAY_OUT)
    if not isinstance(document, dict):
        return None, ConfigError("request", "not a JSON object", WAY_OUT)
    number = document.pop("id", None)
    if number is not None and type(number) is not int:
        return None, ConfigError("request.id", f"{number!r} is not a whole number")
    if number is not None and document == {"leave": True}:
        return number, Departure()
    try:
        return number, parse(Request, document, "request")
    except ConfigError as error:
        return number, error


class Desk:
    """Waiting requests, rows being computed, and answers that must stay in order."""

    def __init__(self, generator: Generator, target: TextIO, memory: int) -> None:
        self._generator, self._target, self._memory = generator, target, memory
        self.rows = Rows(generator.model, generator.vocabulary.ends)
        self._most = num_cores() + 4
        self._waiting: deque[ServedRequest] = deque()
        self._running: list[tuple[ServedRequest, ServedRow]] = []
        self._in_order: deque[Ticket] = deque()

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._running)

    def take(self, line: bytes) -> None:
        """Queue the request of a line, answer why it cannot be done, or drop one that is not needed any
        more.
        """
        number, request = parse_request(line)
        if isinstance(request, Departure):
            self._leave(number)
            return
        ticket = Ticket(number)
        if number is None:
            self._in_order.append(ticket)
        try:
            if isinstance(request, ConfigError):
                raise request
            self._waiting.append(self._asked(ticket, request))
        except AtelierError as error:
            self._answer(ticket, {"error": str(error)})

    def _leave(self, number: int | None) -> None:
        """Free the rows of a request, without an answer."""
        self._waiting = deque(asked for asked in self._waiting if asked.ticket.number != number)
        self._running = [each for each in self._running if each[0].ticket.number != number]

    def _asked(self, ticket: Ticket, request: Request) -> ServedRequest:
        wishes = f"{request.wishes.topic}{', '.join(request.wishes.keywords)}"
        for place, length in (("prompt", len(request.prompt)), ("wishes", len(wishes))):
            if length > LONGEST:
                raise ConfigError(place, f"has {length} characters, more than {LONGEST}", "shorten it")
        before = self._generator.before(request.prompt, request)
        num_rows = min(request.best_of, TOGETHER)
        room, reading = self.rows.room(before, request) * num_rows, self.rows.reading(before) * num_rows
        if reading > self._memory:
            raise ConfigError(
                "prompt",
                f"reading {len(before.encoder or before.ids)} tokens needs {reading / 1e9:.2g} GB, but"
                f" there are only {self._memory / 1e9:.2g} GB",
                "shorten it",
            )
        if room + reading > self._memory:
            raise ConfigError(
                "max_tokens",
                f"{request.max_tokens} tokens after {len(before.ids)} need {(room + reading) / 1e9:.2g} GB"
                f" of keys, values and masks, but only {self._memory / 1e9:.2g} GB is free for all rows",
                "request fewer, or shorten the prompt",
            )
        return ServedRequest(ticket, request, before, room, reading)

    def advance(self) -> None:
        """Start waiting requests while there is room, read a piece of one prompt that is longer than a pass,
        then draw one token for every row whose prompt is read.
        """
        while self._waiting and self._has_room(self._waiting[0]):
            self._begin(self._waiting.popleft())
        unread = next((row for _, row in self._running if not row.is_read), None)
        ready = [row for _, row in self._running if row.is_read]
        if unread is not None:
            self.rows.read(unread)
        for first in range(0, len(ready), SLOTS):
            self.rows.step(ready[first : first + SLOTS])
        for asked, row in self._running:
            if row.is_done:
                self._finish(asked, row)
        self._running = [(asked, row) for asked, row in self._running if not row.is_done]

    def _has_room(self, asked: ServedRequest) -> bool:
        used = sum(other.room for other, _ in self._running) + asked.room
        used += max(asked.reading, *(other.reading for other, _ in self._running), 0)
        return len(self._running) < self._most and used <= self._memory

    def _begin(self, asked: ServedRequest) -> None:
        if asked.request.best_of > 1:  # candidates are drawn and compared at once; others wait
            try:
                text = self._generator.text(asked.request.prompt, asked.request)
            except AtelierError as error:
                self._answer(asked.ticket, {"error": str(error)})
            else:
                self._answer(asked.ticket, {"text": text})
            return
        row = self.rows.begin(asked.before, asked.request)
        if row.is_done:
            self._finish(asked, row)
        else:
            self._running.append((asked, row))

    def _finish(self, asked: ServedRequest, row: ServedRow) -> None:
        self._generator.num_tokens += len(row.ids)
        if row.fault is not None:
            self._answer(asked.ticket, {"error": str(row.fault)})
            return
        text = self._generator.vocabulary.behind(asked.before.ids, row.ids)
        self._answer(asked.ticket, {"text": text})

    def _answer(self, ticket: Ticket, answer: Continuation) -> None:
        if ticket.number is not None:
            say(self._target, {"id": ticket.number, **answer})
            return
        ticket.answer = answer
        while self._in_order and (first := self._in_order[0].answer) is not None:
            self._in_order.popleft()
            say(self._target, first)
