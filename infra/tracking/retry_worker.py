"""A thread that runs jobs in order and retries each until it succeeds. The caller neither waits nor gets
errors.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from atelier.engine.config.error import printable
from atelier.infra.tracking.address import without_secret

POLL_S = 2.0
WAIT_S = (0.25, 8.0)
AGAIN_S = 2.0  # seconds until the backend is reopened
TRIES = 4  # tries of a call that fails while the server answers pings
REFUSALS = 3  # failures to open in a row: another process may be creating the tables
PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED")
LASTING = (  # MLflow reports some of these as temporary errors
    "out-of-date database schema",
    "can't locate revision",
    "readonly database",
    "file is not a database",
    "image is malformed",
    "unable to open database file",
    "no such table",
    "no such column",
)


class Connected(Protocol):
    """A backend that is open."""

    def ping(self) -> None:
        """Raise an error if the server does not answer."""

    def is_lasting(self, error: Exception) -> bool:
        """Whether a retry would fail in the same way."""
        ...


def is_lasting(error: BaseException) -> bool:
    """Whether an error of MLflow or its database is permanent."""
    if any(words in str(error).lower() for words in LASTING) or isinstance(error, ImportError):
        return True
    code = getattr(error, "error_code", None)  # of MLflow's own errors
    return code is not None and code not in PASSING


Action = Callable[[Connected], str | None]  # a call; it may return a text as answer


@dataclass
class Job:
    """A call to the backend. `done` is set on success, or when it is given up (`error` is the reason)."""

    label: str
    action: Action
    done: threading.Event = field(default_factory=threading.Event)
    result: str | None = None
    error: str = ""
    tries: int = 0


class Worker:
    """Runs jobs in order on one thread, which also opens the backend. Jobs wait while the backend is
    unreachable, and are given up if it can never be opened.
    """

    def __init__(self, open_backend: Callable[[], Connected], again_s: float = AGAIN_S) -> None:
        """`open_backend` is called on the thread, again after `again_s` seconds."""
        self._open, self._again_s = open_backend, again_s
        self._refusals, self.is_lost = 0, False
        self._dropped: list[str] = []  # labels of jobs that were given up with the backend
        self._jobs: deque[Job] = deque()
        self._regular: dict[str, Action] = {}
        self._wake = threading.Condition()
        self._closing = threading.Event()
        self._backend: Connected | None = None
        self.problems: list[str] = []
        self.trouble = ""
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)
        self._thread.start()

    def put(self, label: str, action: Action) -> Job:
        """Queue `action(backend)`."""
        job = Job(label, action)
        with self._wake:
            if self._closing.is_set():
                job.error = "the tracker is closed"
                job.done.set()
                return job
            if self.is_lost:
                self._drop(job)
                return job
            self._jobs.append(job)
            self._wake.notify()
        return job

    def regularly(self, label: str, action: Action) -> None:
        """Call `action(backend)` every two seconds until `no_longer(label)`; failures are retried then."""
        with self._wake:
            self._regular[label] = action

    def no_longer(self, label: str) -> None:
        with self._wake:
            self._regular.pop(label, None)

    def close(self, timeout_s: float) -> list[str]:
        """Finish the queued jobs, for `timeout_s` at most; returns unfinished and given-up ones as text."""
        end = time.monotonic() + timeout_s
        with self._wake:
            self._closing.set()
            self._wake.notify()
        self._thread.join(max(0.0, end - time.monotonic()))
        with self._wake:
            left = self._dropped + [job.label for job in self._jobs]
            self._jobs.clear()
        return self.problems + (
            [f"not written: {', '.join(left)} ({self.trouble or 'no answer in time'})"] if left else []
        )

    def _run(self) -> None:
        last_poll = time.monotonic()
        while True:
            with self._wake:
                if not self._jobs and not self._closing.is_set():
                    self._wake.wait(POLL_S)
                job = self._jobs[0] if self._jobs else None
                if job is None and self._closing.is_set():
                    return
            if self._backend is None and not self._connect():
                if self.is_lost:
                    return
                self._pause(self._again_s)
                continue
            backend = self._backend
            assert backend is not None  # connected above
            if job is not None:
                self._try(job, backend)
            if time.monotonic() - last_poll >= POLL_S or job is None:
                last_poll = time.monotonic()
                self._poll(backend)

    def _connect(self) -> bool:
        try:
            self._backend = self._open()
            self.trouble = ""
        except Exception as error:  # any error of MLflow: it must not reach the training
            self.trouble = first_line(error)
            self._refusals = self._refusals + 1 if is_lasting(error) else 0
            if self._refusals >= REFUSALS:
                self._give_up()
        return self._backend is not None

    def _give_up(self) -> None:
        with self._wake:
            self.is_lost = True
            while self._jobs:
                self._drop(self._jobs.popleft())

    def _drop(self, job: Job) -> None:
        job.error = self.trouble
        self._dropped.append(job.label)
        job.done.set()

    def _try(self, job: Job, backend: Connected) -> None:
        try:
            job.result = job.action(backend)
            self.trouble = ""
        except Exception as error:  # as above
            job.tries += 1
            job.error = first_line(error)
            if not backend.is_lasting(error) and not (job.tries >= TRIES and _answers(backend)):
                self.trouble = job.error
                self._pause(min(WAIT_S[0] * 2**job.tries, WAIT_S[1]))
                return
            self.problems.append(f"{job.label}: {job.error}")
        else:
            job.error = ""
        with self._wake:
            if self._jobs and self._jobs[0] is job:
                self._jobs.popleft()
        job.done.set()

    def _poll(self, backend: Connected) -> None:
        with self._wake:
            regular = list(self._regular.values())
        for action in regular:
            try:
                action(backend)
            # the next poll sends the same points; `trouble` has the reason
            except Exception as error:
                self.trouble = first_line(error)

    def _pause(self, seconds: float) -> None:
        if self._closing.is_set():
            time.sleep(min(seconds, 0.5))
        else:
            self._closing.wait(seconds)


def _answers(backend: Connected) -> bool:
    try:
        backend.ping()
    except Exception:  # any error of MLflow
        return False
    return True


def first_line(error: BaseException) -> str:
    """An error as one line without passwords."""
    text = str(error).strip().splitlines()
    return printable(without_secret(text[0] if text else type(error).__name__), 300)
