"""Helper: a relay on loopback between two agents that records all traffic in both directions."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.infra.sites.agents import Site


class Wire:
    """Connections to `port` are carried to `target`, a port of loopback; `seen` is what they said."""

    def __init__(self, target: int) -> None:
        self._target, self._lock = target, threading.Lock()
        self._seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._dead: set[socket.socket] = set()  # ends of which nothing is read any more, and that stay open
        self._left: int | None = None  # bytes that cross until all that is open now is dead
        self._closed = threading.Event()
        self._delay = 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def seen(self) -> bytes:
        with self._lock:
            return b"".join(self._seen)

    def delay(self, seconds: float) -> None:
        """So long takes each part of what is said from now on, each way; the width of the link stays."""
        self._delay = seconds

    def break_after(self, num_bytes: int) -> None:
        """Nobody reads or closes the connections that are open when so many bytes have crossed, as where a
        link is cut, or a machine is gone; later ones work.
        """
        with self._lock:
            self._left = num_bytes

    @property
    def is_broken(self) -> bool:
        return bool(self._dead)

    def _count(self, size: int) -> None:
        """The lock is held."""
        if self._left is not None:
            self._left -= size
            if self._left < 0:
                self._dead, self._left = {*self._dead, *self._ends}, None

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except ConnectionRefusedError:  # the agent is not there
                    near.close()
                    continue
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        waiting = queue.SimpleQueue[tuple[float, bytes]]()
        threading.Thread(target=self._pass_on, args=(waiting, target), daemon=True).start()
        with suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    self._seen.append(data)
                    self._count(len(data))
                    is_dead = source in self._dead
                if is_dead:
                    self._closed.wait()
                    return
                waiting.put((time.monotonic() + self._delay, data))
        waiting.put((time.monotonic() + self._delay, b""))

    def _pass_on(self, waiting: "queue.SimpleQueue[tuple[float, bytes]]", target: socket.socket) -> None:
        with suppress(OSError):
            while True:
                at, data = waiting.get()
                time.sleep(max(0.0, at - time.monotonic()))
                if not data:
                    return target.shutdown(socket.SHUT_WR)
                target.sendall(data)

    def close(self) -> None:
        self._closed.set()
        for end in (self._listener, *self._ends):
            end.close()


@contextmanager
def wired(site: Site, *others: Site) -> Iterator[Wire]:
    """The site, which the others reach through a wire from now on."""
    wire = Wire(site.port)
    card = site.keys.card.model_copy(update={"address": f"127.0.0.1:{wire.port}"})
    for other in others:
        other.keys.accept(card.text, "card")
    try:
        yield wire
    finally:
        wire.close()
