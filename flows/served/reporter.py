"""What a node's own page shows while it runs: log lines, a progress bar, the loss as a picture; and its live
file for the parent. The page is written by a thread: a server that is away keeps nobody waiting.
"""

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.context import hydrated_context, serialize_context

from atelier.flows.served.board import EVERY_S, log_message, losses, replace_artifact, time_text
from atelier.flows.served.live import Live, left_s
from atelier.flows.served.sketch import as_markdown, sketch
from atelier.infra.dag import Node

PICTURE_S = 15.0  # between two pictures


class Reporter:
    """Hears a node and shows it."""

    def __init__(self, root: str, run_id: str, node: Node) -> None:
        self._log = get_run_logger()
        self._live = Live(root, run_id, node.name)
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._context = serialize_context()
        self._progress: Any = None
        self._picture, self._drawn = "", 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Reporter":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def hear(self, node: str, message: dict[str, Any]) -> None:
        self._live.hear(message)
        log_message(self._log, node, message)
        if "progress" in message:
            for role, loss in _losses_of(message).items():
                self._curves.setdefault(role, []).append((message["progress"], loss))
            self._changed.set()

    def _run(self) -> None:
        with hydrated_context(self._context):
            while not self._ended.wait(EVERY_S if self._progress else 1.0):
                if self._changed.is_set():
                    self._changed.clear()
                    self._show(PICTURE_S)
            if self._progress or self._changed.is_set():
                self._show(0.0)

    def _show(self, picture_s: float) -> None:
        with suppress(Exception):  # whatever the server says: it is only for looking at
            self._show_progress()
            if self._curves and time.monotonic() - self._drawn >= picture_s:
                self._drawn = time.monotonic()
                self._show_loss()

    def _show_progress(self) -> None:
        now = self._live.now
        share = 100.0 * now["progress"] / max(now["total"], 1)
        left = time_text(left_s(now))
        about = f"{now['progress']}/{now['total']} {now.get('unit', '')}, {left} left  {losses(now)}"
        if self._progress is None:
            self._progress = create_progress_artifact(progress=share, key="progress", description=about)
        else:
            update_progress_artifact(artifact_id=self._progress, progress=share, description=about)

    def _show_loss(self) -> None:
        now = self._live.now
        about = f"after {now['progress']} of {now['total']} {now.get('unit', '')}: {losses(now)}"
        text = as_markdown(sketch(self._curves), "loss")
        if self._picture:
            replace_artifact(self._picture, text, about)
        else:
            made: Any = create_markdown_artifact(markdown=text, key="loss", description=about)
            self._picture = str(made)


def _losses_of(message: dict[str, Any]) -> dict[str, float]:
    found = message.get("loss")
    return {str(k): float(v) for k, v in found.items()} if isinstance(found, dict) else {}
