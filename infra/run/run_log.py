"""The log of a run: one JSON line for each message about a task that a person wants to read, with its time.

Every process that runs tasks writes its own file in its scratch folder, `{scratch}/log.jsonl`; readers merge
them (flows/run/log_reader.py). Only files: neither a server nor a network can delay or lose a line.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NotRequired, TypedDict

from atelier.engine.config.error import printable
from atelier.engine.config.message import Message, texts_of

FILE = "log.jsonl"
PROGRESS_S = 5.0  # between two lines of one task's progress
LONGEST = 4000  # characters of a line

Listen = Callable[[str, Message], None]


class LogLine(TypedDict):
    """A line of `atelier logs --json`. `time` is seconds since 1970; `level` is info, warning or error;
    `state` stands in lines that say how a task is: running, done, reused, failed, stopped.
    """

    time: float
    task: str
    level: str
    text: str
    state: NotRequired[str]
    rank: NotRequired[int]  # only in lines that a rank printed itself


class RunLog:
    """Writes the messages of a process to its file, and passes them on. Safe to call from several threads.
    A full disk loses lines, but stops nothing.
    """

    def __init__(self, folder: Path, listener: Listen, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._place, self._listener, self._clock = folder / FILE, listener, clock
        self._lock = threading.Lock()
        self._progress_at: dict[str, float] = {}
        self._last_error: dict[str, str] = {}

    def __call__(self, node: str, message: Message) -> None:
        self._listener(node, message)
        lines = [*self._lines(node, message)]
        if lines:
            with self._lock, suppress(OSError), open(self._place, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def _lines(self, node: str, message: Message) -> Iterator[LogLine]:
        now = self._clock()
        if "progress" in message and "state" not in message:
            is_last = message["progress"] >= message.get("total", 0)
            if not is_last and now - self._progress_at.get(node, -PROGRESS_S) < PROGRESS_S:
                return
            self._progress_at[node] = now
        if "error" in message:
            if self._last_error.get(node) == message["error"]:  # a rank and the task's process both tell it
                return
            self._last_error[node] = message["error"]
        for level, text in texts_of(message):
            line: LogLine = {"time": now, "task": node, "level": level, "text": printable(text, LONGEST)}
            if state := message.get("state"):
                line["state"] = state
            yield line
