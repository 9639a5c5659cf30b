"""Run an engine command as a process: run file, inputs by name, progress and errors as JSON lines on stdout.
Torch-free.
"""

import faulthandler
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

from pydantic import ValidationError

from atelier.engine.config.base import Json, explain
from atelier.engine.config.error import AtelierError, ConfigError, of_system
from atelier.engine.config.message import Continuation, Message, to_line
from atelier.engine.config.project_roots import use_roots
from atelier.engine.config.run_file import RESERVE, RunFile
from atelier.engine.io import source_check
from atelier.engine.io.artifact import ArtifactInput, ArtifactOutput, open_input


def say(stream: TextIO, message: Message | Continuation) -> None:
    """Write one JSON line and flush."""
    print(json.dumps(message, ensure_ascii=False), file=stream, flush=True)


class Progress:
    """Counts work and writes `{"progress": done, "total": total, "unit": unit, "rate": per_second}` at most
    twice per second.
    """

    def __init__(
        self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, interval: float = 0.5
    ) -> None:
        self._stream, self._clock, self._interval = stream, clock, interval
        self._spoken = -float("inf")
        self.start(0, "documents")

    def start(self, total: int, unit: str) -> None:
        """Begin a phase of `total` units."""
        self._total, self._unit, self._done, self._began = total, unit, 0, self._clock()

    def warn(self, what: str) -> None:
        """Send a warning for the user."""
        say(self._stream, {"warning": what})

    def advance(self, amount: int) -> None:
        self._done += amount
        now = self._clock()
        if now - self._spoken < self._interval:
            return
        self._spoken = now
        rate = self._done / max(now - self._began, 1e-9)
        say(
            self._stream,
            {"progress": self._done, "total": self._total, "unit": self._unit, "rate": round(rate, 1)},
        )


LOADED = time.monotonic()
faulthandler.enable()  # a crash prints a traceback
INTERRUPTED = 130  # a shell's exit code after Ctrl-C


def run_verb(verb: str, arguments: list[str], act: Callable[[RunFile], Mapping[str, Json] | None]) -> int:
    """Run `act` on the run file in `arguments` and report its result as `done`; returns the exit code: 0, or
    that of the error, which is reported on stdout as JSON. A closed stdout ends the process silently.
    """
    assert isinstance(sys.stdout, TextIOWrapper)  # stdout of a separate process
    run: RunFile | None = None
    sys.stdout.reconfigure(encoding="utf-8")
    try:
        if len(arguments) != 1:
            usage = f"usage: python -m atelier.engine.{verb} run.json"
            raise ConfigError(f"atelier.engine.{verb}", f"{len(arguments)} arguments", usage)
        run = read_run(arguments[0])
        source_check.check_sources(run.sources)
        done = act(run)
        if done is not None:
            say(sys.stdout, Message(done=done))
    except AtelierError as error:
        say_last(run, error)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # otherwise the interpreter reports an error when it flushes the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        say_last(run, of_system(error))
        return 1
    return 0


at_error: list[Callable[[], None]] = []  # called within the `except` of an error that ends a verb (debug.py)


def say_last(run: RunFile | None, error: AtelierError) -> None:
    """Report the error that ends this process; if the disk is full, into the reserved space."""
    for look in at_error:
        look()
    if run is not None:
        (Path(run.scratch) / RESERVE).unlink(missing_ok=True)
    say(sys.stdout, to_line(error))


def began() -> float:
    """When this process was started, before its imports, on the clock of time.monotonic()."""
    try:
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return LOADED
    return time.monotonic() - age


def leave(code: int) -> NoReturn:
    """Flush and end this process with `code`, without interpreter shutdown, because gloo's threads
    occasionally abort a normal shutdown ("terminate called without an active exception").
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def read_run(path: str) -> RunFile:
    """The run file at `path`, whose project roots become those of this process. Raises ConfigError if it is
    missing or invalid, or a root is not on this machine.
    """
    try:
        run = RunFile.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(path, f"cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise explain(error, RunFile, path) from None
    use_roots([(root.name, root.folder) for root in run.roots])
    return run


def input_of(run: RunFile, name: str) -> ArtifactInput:
    """The artifact of input `name`. Raises ConfigError if it is not given or does not exist."""
    given = f"given: {', '.join(run.inputs) or 'none'}"
    if name not in run.inputs:
        raise ConfigError("run.inputs", f"{run.task} needs the input {name}", given)
    try:
        return open_input(run.inputs[name])
    except FileNotFoundError:
        raise ConfigError(
            f"run.inputs.{name}", f"{run.inputs[name]} has no record.json", "no such artifact"
        ) from None


def output_of(run: RunFile, name: str) -> ArtifactOutput:
    """The output `name`. Raises ConfigError if the run file has none."""
    if name not in run.outputs:
        given = f"given: {', '.join(run.outputs) or 'none'}"
        raise ConfigError("run.outputs", f"{run.task} writes {name}", given)
    return ArtifactOutput(run.outputs[name])
