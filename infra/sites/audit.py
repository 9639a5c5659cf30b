"""The audit log of a site's agent: a line for every message that crossed, or was refused. Each line has the
digest of the one before, so that none can be changed or left out without a trace.
"""

import hashlib
import json
import threading
import time
from pathlib import Path

from atelier.engine.config.base import Json
from atelier.engine.config.error import DamageError

FIRST = "0" * 64


class Audit:
    """The log at `path`; it goes on where it ended."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        cut_last(path)
        self._previous = check(path)

    def add(self, what: str, **about: Json) -> None:
        """Append a line: what happened, when, with whom."""
        with self._lock:
            line = json.dumps(
                {"time": round(time.time(), 3), "what": what, **about, "previous": self._previous}
            )
            with self._path.open("a") as file:
                file.write(line + "\n")
            self._previous = hashlib.sha256(line.encode()).hexdigest()


def cut_last(path: Path) -> None:
    """Cut off a last line that is not whole: power was lost, or the disk full, while it was written."""
    if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def check(path: Path) -> str:
    """The digest of the last line of a log. Raises DamageError naming the first line that does not follow
    from the one before.
    """
    previous = FIRST
    if not path.exists():
        return previous
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            found = json.loads(line)
        except ValueError:
            raise DamageError(f"{path}:{number}: no line of an audit log; move the file away") from None
        if not isinstance(found, dict) or found.get("previous") != previous:
            raise DamageError(f"{path}:{number}: does not follow from the line before; move the file away")
        previous = hashlib.sha256(line.encode()).hexdigest()
    return previous
