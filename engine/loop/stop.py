"""Stop requests: by signal, by file, or by the death of the supervisor, which holds the other end of a
pipe.
"""

import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

GUARD = "ATELIER_GUARD_FD"
STOP_FILE = "stop"  # in the gang's scratch folder
STOPPED = 75  # EX_TEMPFAIL: a new run resumes
LOOK_EVERY = 1.0  # seconds between checks for the file


class StopRequest:
    """True once a stop was requested. Ranks notice it at different times; the loop makes them agree on a
    step.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / STOP_FILE
        self._asked = threading.Event()
        self._next_look = 0.0
        self._is_listening = False

    def listen(self) -> None:
        """Install handlers for SIGTERM and SIGINT. Before the rendezvous these signals end the process at
        once: a rank that waits for its peers could not react, and has nothing to save.
        """
        self._is_listening = True
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def watch_supervisor(self) -> None:
        """Watch the supervisor's pipe if the environment names one; its end is a stop request."""
        if GUARD in os.environ:
            threading.Thread(target=self._watch, args=(int(os.environ[GUARD]),), daemon=True).start()

    def ask(self) -> None:
        self._asked.set()

    @property
    def is_asked(self) -> bool:
        now = time.monotonic()
        if not self._asked.is_set() and now >= self._next_look:
            self._next_look = now + LOOK_EVERY
            if self._file.exists():
                self._asked.set()
        return self._asked.is_set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()

    def _watch(self, descriptor: int) -> None:
        try:
            while os.read(descriptor, 4096):
                pass  # a heartbeat
        except OSError:
            pass  # the supervisor is gone
        self._asked.set()
        if not self._is_listening:
            os._exit(STOPPED)
