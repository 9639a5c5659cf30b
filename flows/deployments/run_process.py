"""Run a flow in a child process, for programs that call Atelier (a notebook, a server). There the run has its
own main thread for signals, its own environment for Prefect and MLflow, and no event loop around it.

`python -m atelier.flows.deployments.run_process` reads an Order from standard input, runs it as the command
line does, prints progress on standard output, and writes a RunEnding to the order's file. When its standard
input ends, because the caller is gone, it stops as on Ctrl-C.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from atelier import IMPORT_ROOT
from atelier.engine.config.error import (
    AtelierError,
    ConfigError,
    DamageError,
    DataError,
    StoppedError,
    of_system,
)
from atelier.engine.config.kind_files import where_and_why
from atelier.infra.store.store import Store, default_root

LOOK_S, GRACE_S = 0.2, 10.0
FOR_TERMINALS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
TAIL = 2000  # characters of the output of a process that died
KINDS: dict[str, type[AtelierError]] = {
    kind.__name__: kind for kind in (DamageError, DataError, StoppedError, AtelierError)
}

Say = Callable[[str], None]


class Order(TypedDict):
    """The flow to run, and the file for its ending."""

    flow: str
    overrides: list[str]
    command: str
    ending: str


class Failure(TypedDict, total=False):
    """An AtelierError as JSON: class name, text and parts; the failed task, and the traceback of a bug."""

    kind: str
    text: str
    place: str
    problem: str
    way_out: str
    task: str
    trace: str


class RunEnding(TypedDict):
    """How a run ended: its id ('' if it did not start), and the results that MLflow lacks."""

    run: str
    untracked: list[str]
    failure: Failure | None


def run_in_process(flow: str, overrides: list[str], command: str, say: Say | None = None) -> RunEnding:
    """Run a flow to its end; `say` gets lines of progress. KeyboardInterrupt is passed to the run, and raised
    after the run has ended; a second one kills the run.

    Raises the AtelierError that ended the run, with the run's id as a note.
    """
    with tempfile.TemporaryDirectory(prefix="atelier-run-") as folder:
        place = Path(folder) / "ending.json"
        order: Order = {"flow": flow, "overrides": overrides, "command": command, "ending": str(place)}
        code, tail = _followed(order, say)
        try:
            ending: RunEnding = json.loads(place.read_bytes())
        except FileNotFoundError:
            raise AtelierError(f"the run's process ended with exit code {code} ({tail.strip()})") from None
    if ending["failure"] is not None:
        raise error_of(ending["failure"], ending["run"])
    return ending


def _followed(order: Order, say: Say | None) -> tuple[int, str]:
    """Start the process and follow it to its end. Returns its exit code and last output."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "atelier.flows.deployments.run_process"],  # -P: no local imports
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
        start_new_session=True,
    )
    assert child.stdin is not None and child.stdout is not None
    lines = _Lines(child.stdout.fileno(), say)
    try:
        with suppress(BrokenPipeError):  # it has died; its last output says why
            child.stdin.write(json.dumps(order).encode() + b"\n")
            child.stdin.flush()
        while child.poll() is None:
            lines.read(LOOK_S)
    except BaseException:  # Ctrl-C, or an error of `say`
        _stop(child, lines)
        raise
    finally:
        lines.read(0.0)
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
    return child.returncode, lines.tail


def _environment() -> dict[str, str]:
    """Environment of the process: this one's, with Atelier first on the path, and without the notebook's
    claim that output is a terminal.
    """
    others = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    path = os.pathsep.join([str(IMPORT_ROOT), *(one for one in others if one != str(IMPORT_ROOT))])
    kept = {key: value for key, value in os.environ.items() if key not in FOR_TERMINALS}
    return {"OPENBLAS_NUM_THREADS": "1", **kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def _stop(child: subprocess.Popen[bytes], lines: "_Lines") -> None:
    """Let the run write its checkpoints and end; kill it when interrupted again."""
    try:
        child.send_signal(signal.SIGINT)
        while child.poll() is None:
            lines.read(LOOK_S)
    except BaseException:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        child.kill()
        child.wait()
        raise


class _Lines:
    """Lines from a pipe. Other processes may keep it open after the child has ended."""

    def __init__(self, descriptor: int, say: Say | None) -> None:
        self._descriptor, self._say = descriptor, say
        self._left, self.tail = b"", ""
        self._has_ended = False
        os.set_blocking(descriptor, False)

    def read(self, timeout_s: float) -> None:
        """Read for up to `timeout_s`, and pass on complete lines."""
        if self._has_ended:
            threading.Event().wait(timeout_s)
            return
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return
        while True:
            try:
                some = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                return
            self._has_ended = not some
            *whole, self._left = (self._left + some).split(b"\n")
            for line in whole + ([self._left] if self._has_ended and self._left else []):
                text = line.decode(errors="replace")
                self.tail = f"{self.tail}{text}\n"[-TAIL:]
                if self._say is not None:
                    self._say(text)
            if self._has_ended:
                return


def failure_of(error: AtelierError, task: str = "") -> Failure:
    """The error as JSON; `error_of` is the inverse."""
    if isinstance(error, ConfigError):
        return {
            "kind": "ConfigError", "text": str(error), "task": task,
            "place": error.place, "problem": error.problem, "way_out": error.way_out,
        }  # fmt: skip
    kind = next(name for name, one in KINDS.items() if isinstance(error, one))
    way_out = error.way_out if isinstance(error, DamageError) else ""
    return {"kind": kind, "text": str(error), "way_out": way_out, "task": task}


def error_of(failure: Failure, run: str) -> AtelierError:
    """The error, with the run's id, and the traceback of a bug, as notes."""
    kind, task = failure.get("kind", ""), failure.get("task", "")
    way_out, text = failure.get("way_out", ""), failure.get("text", "")
    told = f"{task}: {text}" if task else text
    if kind == "ConfigError":
        error: AtelierError = ConfigError(failure.get("place", ""), failure.get("problem", ""), way_out)
    elif kind == "DamageError":
        error = DamageError(told, way_out)
    else:
        error = KINDS.get(kind, AtelierError)(told)
    if run:
        error.add_note(f"run {run}{f', task {task}' if task else ''}: finished tasks are kept")
    if trace := failure.get("trace", ""):
        error.add_note(trace)
    return error


def run_order(order: Order) -> RunEnding:
    """Run the order in this process."""
    # late: the calling process imports neither
    from atelier.flows.deployments.start import run_to_end
    from atelier.flows.run.compose import compose
    from atelier.flows.run.store_check import check_root

    try:
        check_root(will_write=True)
        frozen = compose(order["flow"], order["overrides"])
        outcome = run_to_end(frozen, Store(default_root()), order["command"])
    except KeyboardInterrupt:
        return _unbegun({"kind": "StoppedError", "text": "stopped"})
    except AtelierError as error:
        return _unbegun(failure_of(error))
    except OSError as error:
        return _unbegun(failure_of(of_system(error)))
    except Exception as error:  # a bug
        text = f"{where_and_why(error)} (a fault in the program, or in a kind that was added)"
        return _unbegun({"kind": "AtelierError", "text": text, "trace": traceback.format_exc()})
    failed = outcome.failure
    if failed is not None and not isinstance(failed, AtelierError):
        failed = AtelierError(f"{type(failed).__name__}: {failed}")
    return {
        "run": outcome.run_id,
        "untracked": outcome.untracked,
        "failure": failure_of(failed, outcome.failed) if failed is not None else None,
    }


def _unbegun(failure: Failure) -> RunEnding:
    return {"run": "", "untracked": [], "failure": failure}


def main() -> int:
    """Run the order on standard input. Returns 0 if its ending was written."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & ignores it
    order: Order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_stop_with_input, daemon=True).start()
    ending = run_order(order)
    place = Path(order["ending"])
    with suppress(FileNotFoundError):  # the caller is gone
        place.with_suffix(".part").write_text(json.dumps(ending))
        os.replace(place.with_suffix(".part"), place)
    return 0


def _stop_with_input() -> None:
    """Stop the run when standard input ends first."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):  # closed pipes must not make writes fail
        os.dup2(nowhere, descriptor)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
