"""Shows a running flow to the user: a live line per running task in a terminal, plain lines elsewhere."""

import sys
import threading
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from atelier.engine.config.error import printable
from atelier.engine.config.message import Message

EVERY_S = 10.0  # between progress lines without a terminal


class Screen:
    """Shows the messages of all nodes; safe to call from several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, highlight=False)
        self._lock = threading.Lock()
        self._bars: dict[str, TaskID] = {}
        self._at: dict[str, str] = {}  # the progress of each running node, as text
        self._spoke = -EVERY_S
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_live:
            self._progress.stop()

    def line(self, text: str) -> None:
        """Print a line without interpreting markup."""
        self._marked(escape(printable(text, 0)))

    def _marked(self, text: str) -> None:
        with self._lock:
            self.console.print(text, soft_wrap=True)

    def on_message(self, node: str, message: Message) -> None:
        """Handle a message of the node's training or of the context."""
        if "state" in message:
            self._state(node, message)
        elif "waiting" in message:
            self.line(f"  {node}: {message['waiting']}")
        elif "warning" in message:
            self._marked(f"  [yellow]{_said(node, message['warning'])}[/]")
        elif "resumed" in message:
            if message["resumed"]:
                self.line(f"  {node}: continues from step {message['resumed']}")
            for damage in message.get("damages", []):
                self._marked(f"  [yellow]{_said(node, f'skipped as damaged: {damage}')}[/]")
        elif "log" in message:
            self.line(f"  {node}: {message['log']}")
        elif "progress" in message:
            self._step(node, message)

    def _state(self, node: str, message: Message) -> None:
        state = message.get("state", "")
        if state == "running":
            self._began[node] = time.monotonic()
            if not self.is_live:
                self.line(f"> {node}")
            return
        with self._lock:
            self._at.pop(node, None)
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

    def _step(self, node: str, message: Message) -> None:
        detail, done, total = _detail(message), message.get("progress", 0), message.get("total", 0)
        if self.is_live:
            if node not in self._bars:
                self._bars[node] = self._progress.add_task(node, total=total, detail="")
            self._progress.update(self._bars[node], completed=done, total=total, detail=detail)
            return
        rate = message.get("rate") or 0
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        text = f"{node}: {done}/{total} {message.get('unit', '')}{left}  {detail}".rstrip()
        with self._lock:
            self._at[node] = text
            is_due = time.monotonic() - self._spoke >= EVERY_S
            self._spoke = time.monotonic() if is_due else self._spoke
            now = " | ".join(self._at.values())
        if is_due:
            self.line(f"  {now}")


def _said(node: str, text: str) -> str:
    return escape(printable(f"{node}: {text}", 0))


def _detail(message: Message) -> str:
    losses = message.get("loss")
    if isinstance(losses, dict):
        return "  ".join(f"{role} {loss:.3f}" for role, loss in losses.items())
    return ""
