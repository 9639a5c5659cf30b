"""Read the log of a run from the files that its processes write, from the beginning or as it grows: the log's
own lines (infra/run/run_log.py), or what one rank of each gang printed.
"""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from atelier.engine.config.error import ConfigError, printable
from atelier.engine.config.message import message_of, texts_of
from atelier.infra.run.run_log import FILE, LONGEST, LogLine
from atelier.infra.store.local_folders import local_folder
from atelier.infra.store.store import Store

RUN_FILE = "run.json"
MOST_DIGITS = 7  # of a rank
STREAMS = (("out", "info"), ("err", "error"))


class LogReader:
    """The log of one run, of all tasks or of `task`; each call of `read` returns the lines since the last."""

    def __init__(self, store: Store, run_id: str, task: str = "", rank: int | None = None) -> None:
        self.folder = local_folder(store) / "scratch" / run_id
        self._task, self._rank = task, rank
        self._read: dict[Path, int] = {}  # bytes, by file
        self._states: dict[str, str] = {}
        self._errors: set[tuple[str, str]] = set()

    @property
    def has_files(self) -> bool:
        """Whether the run has written a log on this machine."""
        return any(True for _ in (self._logs() if self._rank is None else self._rank_files()))

    def read(self) -> list[LogLine]:
        """The new lines, in order of time."""
        found = [*(self._run_lines() if self._rank is None else self._rank_lines(self._rank))]
        return sorted(found, key=lambda line: line["time"])

    def ranks(self) -> int:
        """The number of ranks that wrote files, of the largest gang."""
        return max((1 + int(path.stem.removeprefix("rank")) for path in self._rank_files()), default=0)

    def _logs(self) -> list[Path]:
        """The run's own file, and those of its tasks on pools."""
        return [
            path for path in (self.folder / FILE, *sorted(self.folder.glob(f"*/{FILE}"))) if path.exists()
        ]

    def _rank_files(self) -> list[Path]:
        return [
            path
            for folder in gang_folders(self.folder)
            if not self._task or task_of(folder) == self._task
            for stream, _ in STREAMS
            for path in sorted(folder.glob(f"rank[0-9]*.{stream}"))
        ]

    def _run_lines(self) -> Iterator[LogLine]:
        for path in self._logs():
            for text in self._new(path):
                with suppress(ValueError):
                    line = cast(LogLine, json.loads(text))  # our own file; a torn line is no JSON
                    if self._task in ("", line["task"]) and not self._is_told(line):
                        yield line

    def _is_told(self, line: LogLine) -> bool:
        """Whether another process has told the same: a run and its task on a pool both tell states."""
        task = line["task"]
        if state := line.get("state"):
            was, self._states[task] = self._states.get(task), state
            return was == state
        if line["level"] == "error":
            is_told = (task, line["text"]) in self._errors
            self._errors.add((task, line["text"]))
            return is_told
        return False

    def _rank_lines(self, rank: int) -> Iterator[LogLine]:
        for path in self._rank_files():
            if path.stem == f"rank{rank}":
                level, task = dict(STREAMS)[path.suffix[1:]], task_of(path.parent)
                for text in self._new(path):
                    for kind, said in _plain(text, level):
                        shown = printable(said, LONGEST)
                        now = path.stat().st_mtime
                        yield {"time": now, "task": task, "level": kind, "text": shown, "rank": rank}

    def _new(self, path: Path) -> Iterator[str]:
        """The whole lines that were added. A file that became shorter was begun again."""
        with suppress(OSError), open(path, "rb") as file:
            begin = self._read.get(path, 0)
            begin = 0 if path.stat().st_size < begin else begin
            file.seek(begin)
            block = file.read()
            whole = block[: block.rfind(b"\n") + 1]
            self._read[path] = begin + len(whole)
            yield from whole.decode(errors="replace").splitlines()


def gang_folders(folder: Path) -> list[Path]:
    """The folders of a run's gangs on this machine, of those on pools as well, the oldest first."""
    found = [*folder.glob(f"[0-9]*/{RUN_FILE}"), *folder.glob(f"*/[0-9]*/{RUN_FILE}")]
    return [path.parent for path in sorted(found, key=lambda path: (path.stat().st_mtime, str(path)))]


def task_of(gang: Path) -> str:
    """The task of a gang's folder, by its run file; '' if that cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((gang / RUN_FILE).read_bytes())["ids"]["task"])
    return ""


def _plain(text: str, level: str) -> Iterator[tuple[str, str]]:
    """A line of a rank: messages as text, anything else as it is."""
    with suppress(ValueError):
        if (message := message_of(json.loads(text))) is not None and (lines := [*texts_of(message)]):
            yield from lines
            return
    yield level, text


def rank_of(word: str | None, reader: LogReader) -> int | None:
    """The rank in `--rank N`. Raises ConfigError for a word that is no rank of the run."""
    if word is None:
        return None
    number = int(word) if word.isascii() and word.isdecimal() and len(word) < MOST_DIGITS else None
    most = reader.ranks()
    if number is None or (most and number >= most):
        there = f"0 to {most - 1}" if most else "a number from 0"
        raise ConfigError("logs --rank", f"{word!r} is no rank of this run", f"give {there}")
    return number


def clock_text(moment: float) -> str:
    """A moment as local time, for a line of a log."""
    return time.strftime("%H:%M:%S", time.localtime(moment))
