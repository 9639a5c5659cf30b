"""Run one process of a gang in the foreground under Python's debugger:
python -m atelier.engine.debug atelier.engine.train run.json [--start] [FILE:LINE | FUNCTION] ...

Without places it runs at full speed until an error, and opens the debugger there. With places it stops at
them, in the main thread; --start stops before the first line. Messages are printed as text. Exit codes are
those of the module, and 0 after q (quit) at a place.
"""

import importlib
import inspect
import io
import json
import pdb
import sys
from bdb import BdbQuit
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from atelier import PROJECT
from atelier.engine.config.error import AtelierError, ConfigError, printable
from atelier.engine.config.message import message_of, texts_of
from atelier.engine.io import process
from atelier.engine.io.process import leave

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

START = "--start"
PACKAGE = "atelier.engine"


class Debugger(pdb.Pdb):
    """Python's debugger on the terminal, while standard output is the program's."""

    def __init__(self) -> None:
        super().__init__()
        self._terminal = sys.stdout

    def interaction(self, frame: FrameType | None, traceback: Any) -> None:  # its type differs by version
        with redirect_stdout(self._terminal):
            super().interaction(frame, traceback)

    def look_at(self, trace: TracebackType | None) -> None:
        """Open the debugger where an error was raised."""
        if trace is not None:
            self.reset()
            with suppress(BdbQuit):
                self.interaction(None, trace)


class MessageText(io.RawIOBase):
    """Prints JSON messages as text on the terminal, and other output as it is."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal, self._rest = terminal, b""

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        added = bytes(data)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for line in lines:
            self._show(line.decode(errors="replace"))
        return len(added)

    def _show(self, line: str) -> None:
        texts = [line]
        with suppress(ValueError):
            if (message := message_of(json.loads(line))) is not None:
                texts = [text for _, text in texts_of(message)]
        for text in texts:
            print(printable(text, 0), file=self._terminal, flush=True)


def place_of(word: str, verb: ModuleType) -> tuple[str, int, str | None]:
    """File, line and function (None for a line) of a place: FILE:LINE, or a function's name in the verb's
    module, or with its module, as in loop.step.train_step. Raises ConfigError if there is none.
    """
    file, colon, line = word.rpartition(":")
    if colon and line.isdecimal():
        there = [path for path in (Path(file), PROJECT / file) if path.is_file()]
        if not there:
            raise ConfigError("debug", f"no file {file}", f"a path, or one below {PROJECT}")
        return str(there[0].resolve()), int(line), None
    module, _, name = word.rpartition(".")
    try:
        found = getattr(importlib.import_module(f"{PACKAGE}.{module}") if module else verb, name)
        code = inspect.unwrap(found).__code__
    except (ImportError, AttributeError):
        way_out = "FILE:LINE, or a function, with its module below engine: loop.step.train_step"
        raise ConfigError("debug", f"no function {word}", way_out) from None
    return code.co_filename, code.co_firstlineno, code.co_name


def debugged(verb: ModuleType, run_file: str, places: list[str], *, stops_first: bool) -> int:
    """Run the verb's `main` on the run file; returns its exit code. Raises ConfigError for a place that does
    not exist or has no code.
    """
    debugger = Debugger()
    for word in places:
        file, line, function = place_of(word, verb)
        is_code = function is not None or debugger.checkline(file, line)
        if not is_code or (problem := debugger.set_break(file, line, funcname=function)):
            raise ConfigError("debug", f"{word} is no line of code", str(problem if is_code else ""))
    process.at_error.append(lambda: debugger.look_at(sys.exc_info()[2]))
    terminal = sys.stdout
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(MessageText(terminal)), "utf-8", line_buffering=True)
    act: Callable[[list[str]], int] = verb.main
    try:
        if not places and not stops_first:
            return act([run_file])
        debugger.rcLines = [] if stops_first else ["continue"]
        return debugger.runcall(act, [run_file]) or 0
    except BdbQuit:
        return 0
    except Exception as error:  # one that the verb does not report: a fault in the program
        with redirect_stdout(terminal):
            print(printable(f"{type(error).__name__}: {error}", 0))
        debugger.look_at(error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
        sys.stdout = terminal


def main(arguments: list[str]) -> int:
    """Debug a module of the engine; returns the exit code."""
    module, run_file, *rest = arguments
    places = [word for word in rest if word != START]
    try:
        verb = importlib.import_module(module)
        return debugged(verb, run_file, places, stops_first=START in rest)
    except AtelierError as error:
        print(printable(error, 0), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
