"""Live progress of a run's nodes: `{root}/live/<run>/<node>.json`. The process that runs the node writes it,
at most every two seconds. It is removed with the run.
"""

import json
import time
from contextlib import suppress
from typing import cast

from atelier.engine.config.error import DamageError
from atelier.engine.config.message import LiveState, Message
from atelier.engine.io.storage import join, names, read_object, remove, write_bytes

EVERY_S = 2.0
SHOWN = ("state", "progress", "total", "unit", "rate", "loss", "warning")  # keys of messages that are kept


def folder_of(root: str, run_id: str) -> str:
    return join(root, "live", run_id)


class LiveProgress:
    """The file of one node. Write errors are ignored: it is only for display."""

    def __init__(self, root: str, run_id: str, node: str) -> None:
        self.place = join(folder_of(root, run_id), f"{node.replace('/', '-')}.json")
        self.now: LiveState = {"node": node, "state": "waiting for a slot", "began": time.time()}
        self._written = 0.0

    def on_message(self, message: Message) -> None:
        """Store a message of the node's process group or of the context."""
        if "waiting" in message:
            self.now["state"] = message["waiting"]
        kept = {key: value for key, value in message.items() if key in SHOWN}
        self.now = cast(LiveState, {**self.now, **kept})
        is_news = "state" in message or "warning" in message or "waiting" in message
        if is_news or time.monotonic() - self._written >= EVERY_S:
            self._written = time.monotonic()
            with suppress(OSError):
                write_bytes(self.place, json.dumps(self.now).encode())


def read_live(root: str, run_id: str) -> dict[str, LiveState]:
    """Node -> the content of its file; files that are being written are left out."""
    found = {}
    with suppress(OSError):
        for name in names(folder_of(root, run_id)):
            with suppress(OSError, DamageError, KeyError):
                document = read_object(join(folder_of(root, run_id), name))
                found[str(document["node"])] = cast(LiveState, document)
    return found


def forget_live(root: str, run_id: str) -> None:
    with suppress(OSError):
        remove(folder_of(root, run_id))


def left_s(now: LiveState) -> float | None:
    """Seconds left at the present rate; None when unknown."""
    rate = now.get("rate") or 0
    return (now["total"] - now["progress"]) / rate if rate and "total" in now and "progress" in now else None
