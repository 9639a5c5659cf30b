"""Run an engine command in a child process and follow its messages, for `generate` and `export`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

from atelier import IMPORT_ROOT
from atelier.engine.config.error import AtelierError
from atelier.engine.config.message import Message, from_line
from atelier.infra.code.provenance import check_torch

GRACE_S = 5.0


def follow(
    verb: str, place: Path, env: dict[str, str], grace_s: float | None = GRACE_S
) -> Generator[Message, None, None]:
    """Yield the messages of `python -m atelier.engine.<verb>` on the run file at `place`. The process leads
    its own session: Ctrl-C reaches only the parent. Closing the iterator interrupts it, so that it removes
    partial output, and kills it after `grace_s` (None = never). Raises AtelierError when it reports an error
    or dies, ConfigError without torch.
    """
    check_torch(verb)
    errors = place.with_name("err")
    with open(errors, "wb") as err:
        child = subprocess.Popen(
            [sys.executable, "-m", f"atelier.engine.{verb}", str(place)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=err,
            env=env,
            cwd=IMPORT_ROOT,
            start_new_session=True,
        )
    assert child.stdout is not None
    with child.stdout:
        try:
            for line in child.stdout:
                message: Message = json.loads(line)
                if "error" in message:  # a DataError names the place
                    raise from_line(message)
                yield message
            child.wait()
        finally:
            _end(child, grace_s)
    if child.returncode:
        last = errors.read_text(errors="replace").strip().splitlines()[-1:]
        why = f" ({last[0]})" if last else ""
        raise AtelierError(f"{verb}: the engine ended with exit code {child.returncode}{why}")


def _end(child: subprocess.Popen[bytes], grace_s: float | None) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with the ranks that it started
        child.wait()
