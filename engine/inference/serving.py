"""Answer requests, a JSON line each, as they come: rows of several requests are computed together, and one
joins at the next token when another ends. What is said to one request depends on no other
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

LONGEST = 500_000  # characters of a prompt, and of its wishes: tokens of a text take up to 350 bytes for each
WAY_OUT = 'send {"prompt": "..."} on one line'


@dataclass
class Ticket:
    """Who asked: the `id` of a request, None where it has none; and what it is told, once that is known."""

    number: int | None
    answer: Continuation | None = None


class ServedRequest(NamedTuple):
    """A request that can be answered. `room`: bytes of keys and values; `reading`: of a pass over its prompt,
    one of which runs at a time.
    """

    ticket: Ticket
    request: Request
    before: Prefix
    room: int
    reading: int


def serve(generator: Generator, lines: Iterable[bytes], target: TextIO, *, memory: int) -> None:
    """Answer every line with one line: those with an `id` when they are done, with that id, the others in
    their order. A request that fails gets its error and affects no other. `memory`: bytes of keys and values
    of all rows that are computed; what does not fit waits.

    Returns when all are answered after the last line, or nobody reads the answers any more.
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
    """Whether the pipe has no reader any more: the process that asked is gone."""
    try:
        number = target.fileno()
    except OSError:  # no file
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


class Departure(NamedTuple):
    """{"id": 3, "leave": true}: nobody waits for the answer to request 3 any more."""


def parse_request(line: bytes) -> tuple[int | None, Request | Departure | ConfigError]:
    """The `id` of a request, None where it has none, and the request or why it is none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: also what is not UTF-8
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
    """Requests that wait, rows that are computed, and answers that must not overtake others."""

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
        """Have the request of a line wait, or say why it cannot be answered; or leave one for which nobody
        waits any more.
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
        """Free the rows of a request; it gets no answer."""
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
                f"reading {len(before.encoder or before.ids)} tokens needs {reading / 1e9:.2g} GB, and there"
                f" are {self._memory / 1e9:.2g} GB",
                "shorten it",
            )
        if room + reading > self._memory:
            raise ConfigError(
                "max_tokens",
                f"{request.max_tokens} tokens after {len(before.ids)} need {(room + reading) / 1e9:.2g} GB of"
                f" keys, values and masks, and there are {self._memory / 1e9:.2g} GB for all rows",
                "ask for fewer, or shorten the prompt",
            )
        return ServedRequest(ticket, request, before, room, reading)

    def advance(self) -> None:
        """Begin with what waits while there is room, read a piece of one prompt that is longer than a pass
        reads, then draw one token of every row that is read.
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
        if asked.request.best_of > 1:  # its candidates are drawn and compared at once, while all others wait
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
