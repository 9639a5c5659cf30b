"""The progress page of a parent run: a table of its nodes; with helpers that the task page shares. It is
written by a thread: an unavailable server delays nothing.
"""

import json
import logging
import threading
from contextlib import suppress
from types import TracebackType

from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.context import hydrated_context, serialize_context

from atelier.engine.config.message import LiveState, Message
from atelier.flows.deployments.live import forget_live, left_s, read_live
from atelier.flows.run.execute import RunOutcome
from atelier.flows.run.prefect_page import replace_artifact
from atelier.infra.run.context import RunContext

EVERY_S = 5.0


class ProgressPage:
    """The table on a parent run's page: per node its state, progress, seconds left, losses and its run."""

    def __init__(self, root: str, run_id: str, names: list[str]) -> None:
        self._root, self._run_id, self._names = root, run_id, names
        self._log = get_run_logger()
        self._states: dict[str, str] = {}
        self._pages: dict[str, str] = {}
        self._ended = threading.Event()
        self._artifact, self._is_linked = "", False
        self._shown: list[dict[str, str]] = []
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "ProgressPage":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(10.0)
        forget_live(self._root, self._run_id)

    def follow(self, outcome: RunOutcome, context: RunContext) -> None:
        """Show the states of `outcome` from now on."""
        self._states = outcome.states
        prefect_context = serialize_context()

        def show() -> None:
            with hydrated_context(prefect_context):
                while not self._ended.wait(EVERY_S if self._artifact else 1.0):
                    self._show()
                    self._link(context)
                self._show()
                self._link(context)

        self._thread = threading.Thread(target=show, daemon=True)
        self._thread.start()

    def began(self, node: str, run_id: str, page: str) -> None:
        """Link the run of `node` that was started on a pool."""
        self._pages[node] = page
        self._log.info("%s: run %s", node, run_id)

    def on_message(self, node: str, message: Message) -> None:
        """Log a message about a node, from this process or from its run on a pool."""
        log_message(self._log, node, message)

    def rows(self) -> list[dict[str, str]]:
        """The table as it is now."""
        live = read_live(self._root, self._run_id)
        rows = []
        for name in self._names:
            now, state = live.get(name, LiveState()), self._states.get(name, "")
            is_running = state == "running"
            rows.append(
                {
                    "task": name,
                    "state": str(now.get("state", state)) if is_running else state or "to come",
                    "done": amount_text(now) if "total" in now else "",
                    "left": time_text(left_s(now)) if is_running else "",
                    "loss": losses(now),
                    "run": f"[page]({self._pages[name]})" if name in self._pages else "",
                }
            )
        return rows

    def _link(self, context: RunContext) -> None:
        """Add a link to MLflow to the page, once its run is known."""
        if self._is_linked:
            return
        with suppress(Exception):  # as in `_show`
            for key, text in (("flow", "this run in MLflow"), ("compare", "the curves of its models")):
                url = context.tracker.urls.get(key)
                if url:
                    create_link_artifact(
                        link=url, link_text=text, key=f"mlflow-{key}", description=f"[{text}]({url})"
                    )
                    self._is_linked = True

    def _show(self) -> None:
        rows = self.rows()
        if rows == self._shown:
            return
        ended = sum(row["state"] in ("done", "reused") for row in rows)
        about = f"{ended} of {len(rows)} tasks ended"
        try:
            if not self._artifact:
                self._artifact = str(create_table_artifact(table=rows, key="progress", description=about))
            else:
                replace_artifact(self._artifact, json.dumps(rows), about)
            self._shown = rows
        except Exception as error:  # the page is only for display
            self._log.debug("progress is not shown: %s", error)


Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


def log_message(log: Log, node: str, message: Message) -> None:
    """Write a node's message to the log of a Prefect run, unless it is only progress."""
    if "warning" in message:
        log.warning("%s: %s", node, message["warning"])
    elif "error" in message:
        log.error("%s: %s", node, message["error"])
    elif step := message.get("resumed"):
        log.info("%s: goes on from step %s", node, step)
        for damage in message.get("damages", []):
            log.warning("%s: damaged and passed over: %s", node, damage)
    else:
        text = message.get("state") or message.get("waiting") or message.get("log")
        if text:
            log.info("%s: %s %s", node, text, message.get("detail", ""))


def amount_text(now: LiveState) -> str:
    """'120/400 steps'."""
    return f"{now.get('progress', 0)}/{now.get('total', 0)} {now.get('unit', '')}"


def losses(now: Message) -> str:
    found = now.get("loss")
    return "  ".join(f"{k} {v:.3f}" for k, v in found.items()) if isinstance(found, dict) else ""


def time_text(seconds: float | None) -> str:
    """'12 s', '3 min', '1 h 5 min'; '' when unknown."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
