"""How a verb of the engine runs as a process: its run file, inputs by name, errors as a line. Torch-free."""

import faulthandler
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from atelier.engine import sources
from atelier.engine.artifact import Input, Output, open_input
from atelier.engine.data.progress import say
from atelier.engine.spec.base import explain
from atelier.engine.spec.error import AtelierError, ConfigError, of_system, to_line
from atelier.engine.spec.run import RunFile

LOADED = time.monotonic()
faulthandler.enable()  # a process that crashes says where
INTERRUPTED = 130  # what a shell reports after Ctrl-C


def run_verb(verb: str, arguments: list[str], act: Callable[[RunFile], None]) -> int:
    """`act` on the run file that `arguments` name; the exit code: 0, or the error's, told on stdout as JSON.

    A reader that went away ends the process without a word.
    """
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    try:
        if len(arguments) != 1:
            usage = f"usage: python -m atelier.engine.{verb} run.json"
            raise ConfigError(f"atelier.engine.{verb}", f"{len(arguments)} arguments", usage)
        run = read_run(arguments[0])
        sources.check(run.sources)
        act(run)
    except AtelierError as error:
        say(sys.stdout, to_line(error))
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # else the interpreter complains when it flushes the dead pipe at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        say(sys.stdout, to_line(of_system(error)))
        return 1
    return 0


def began() -> float:
    """When this process was started, on the clock of time.monotonic(): imports lie between."""
    try:
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return LOADED
    return time.monotonic() - age


def leave(code: int) -> NoReturn:
    """End this process with `code`, all it said written. A gang's processes leave this way: gloo's threads
    now and then abort an interpreter that takes itself down ("terminate called without an active exception").
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def read_run(path: str) -> RunFile:
    """The run file at `path`; ConfigError when it is missing or not one."""
    try:
        return RunFile.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(path, f"cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise explain(error, RunFile, path) from None


def input_of(run: RunFile, name: str) -> Input:
    """The artifact given as input `name`; ConfigError when none is given, or none is there."""
    given = f"given: {', '.join(run.inputs) or 'none'}"
    if name not in run.inputs:
        raise ConfigError("run.inputs", f"{run.task} needs the input {name}", given)
    try:
        return open_input(run.inputs[name])
    except FileNotFoundError:
        raise ConfigError(
            f"run.inputs.{name}", f"{run.inputs[name]} has no record.json", "no such artifact"
        ) from None


def output_of(run: RunFile, name: str) -> Output:
    """The output called `name`; ConfigError when the run file has no place for it."""
    if name not in run.outputs:
        given = f"given: {', '.join(run.outputs) or 'none'}"
        raise ConfigError("run.outputs", f"{run.task} writes {name}", given)
    return Output(run.outputs[name])
