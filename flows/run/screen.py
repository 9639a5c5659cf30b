"""Shows a running flow to the user: a live line per running task in a terminal, plain lines elsewhere."""

import sys
import threading
import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from atelier.engine.config.error import printable

EVERY_S = 5.0


class Screen:
    """Shows the messages of all nodes; safe to call from several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False)
        self._lock = threading.Lock()
        self._bars: dict[str, TaskID] = {}
        self._spoke: dict[str, float] = {}
        self._began: dict[str, float] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.is_live = self.console.is_terminal

    def __enter__(self) -> "Screen":
        if self.is_live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            self._progress.stop()

    def line(self, text: str) -> None:
        """Print a line; brackets in it are no markup."""
        self._marked(escape(printable(text, 0)))

    def _marked(self, text: str) -> None:
        with self._lock:
            self.console.print(text, soft_wrap=True)

    def on_message(self, node: str, message: dict[str, Any]) -> None:
        """A message of the node's gang, or of the context about the node."""
        if "state" in message:
            self._state(node, message)
        elif "waiting" in message:
            self.line(f"  {node}: {message['waiting']}")
        elif "warning" in message:
            self._marked(f"  [yellow]{_said(node, message['warning'])}[/]")
        elif "resumed" in message:
            if message["resumed"]:
                self.line(f"  {node}: goes on from step {message['resumed']}")
            for damage in message.get("damages", []):
                self._marked(f"  [yellow]{_said(node, 'damaged and passed over: ' + str(damage))}[/]")
        elif "log" in message:
            self.line(f"  {node}: {message['log']}")
        elif "progress" in message:
            self._step(node, message)

    def _state(self, node: str, message: dict[str, Any]) -> None:
        state = message["state"]
        if state == "running":
            self._began[node] = time.monotonic()
            if not self.is_live:
                self.line(f"> {node}")
            return
        if self.is_live and node in self._bars:
            self._progress.remove_task(self._bars.pop(node))
        took = f"{time.monotonic() - self._began[node]:.1f} s" if node in self._began else ""
        mark = {
            "done": "[green]+[/]",
            "reused": "[dim]=[/]",
            "failed": "[red]x[/]",
            "stopped": "[yellow]-[/]",
        }.get(state, " ")
        detail = message.get("detail", "")
        self._marked(f"{mark} {escape(printable(f'{node:<28} {state:<8} {took:>9}  {detail}', 0))}".rstrip())

    def _step(self, node: str, message: dict[str, Any]) -> None:
        detail = _detail(message)
        if self.is_live:
            if node not in self._bars:
                self._bars[node] = self._progress.add_task(node, total=message["total"], detail="")
            self._progress.update(
                self._bars[node], completed=message["progress"], total=message["total"], detail=detail
            )
            return
        now = time.monotonic()
        if now - self._spoke.get(node, 0.0) >= EVERY_S:
            self._spoke[node] = now
            rate = message.get("rate") or 0
            left = f", {(message['total'] - message['progress']) / rate:.0f} s left" if rate else ""
            self.line(
                f"  {node}: {message['progress']}/{message['total']} {message.get('unit', '')}{left} "
                f" {detail}".rstrip()
            )


def _said(node: str, text: object) -> str:
    return escape(printable(f"{node}: {text}", 0))


def _detail(message: dict[str, Any]) -> str:
    losses = message.get("loss")
    if isinstance(losses, dict):
        return "  ".join(f"{role} {loss:.3f}" for role, loss in losses.items())
    return ""
