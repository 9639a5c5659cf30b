"""The markdown artifact `overview` on a parent run's page in Prefect: plan, progress of tasks, links. It also
has helpers that the task page shares. A thread writes it, so an unavailable server delays nothing.
"""

import logging
import threading
from contextlib import suppress
from types import TracebackType
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.context import hydrated_context, serialize_context
from prefect.runtime import flow_run

from atelier.engine.config.message import LiveState, Message
from atelier.flows.deployments.live import forget_live, left_s, read_live
from atelier.flows.run.outcome import RunOutcome
from atelier.flows.run.plan import Plan
from atelier.flows.run.prefect_page import replace_artifact
from atelier.flows.run.reasons import text_of
from atelier.flows.run.table import duration
from atelier.infra.dag import Node
from atelier.infra.report.table import markdown_rows
from atelier.infra.run.context import RunContext
from atelier.infra.stack import prefect_api
from atelier.infra.store.run_manifest import row_name

EVERY_S = 5.0
COLUMNS = ("task", "state", "why", "time", "memory", "done", "left", "loss", "run")
MLFLOW = {"compare": "curves of this run", "flow": "this run in MLflow", "models": "all models in MLflow"}
ARTIFACTS = {"report": "report", "plan": "plan of each artifact", "sites": "sites"}


class OverviewPage:
    """The markdown on a parent run's page, shown before the first task starts."""

    def __init__(self, root: str, run_id: str, plan: Plan) -> None:
        self._root, self._run_id, self._plan = root, run_id, plan
        self._log = get_run_logger()
        self._states: dict[str, str] = {}
        self._pages: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._ended = threading.Event()
        self._artifact, self._shown = "", ""
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "OverviewPage":
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(10.0)
        forget_live(self._root, self._run_id)

    def follow(self, outcome: RunOutcome, context: RunContext) -> None:
        """Show the states of `outcome`, and update them."""
        self._states = outcome.states
        prefect_context, prefect_run = serialize_context(), str(flow_run.id)

        def show() -> None:
            with hydrated_context(prefect_context):
                is_last = False
                while not is_last:
                    is_last = self._ended.wait(EVERY_S)
                    self._find_links(context, prefect_run)
                    self._show()

        self._thread = threading.Thread(target=show, daemon=True)
        self._thread.start()

    def began(self, node: str, run_id: str, page: str) -> None:
        """Link the run of `node` on a pool."""
        self._pages[node] = page
        self._log.info("%s: run %s", node, run_id)

    def on_message(self, node: str, message: Message) -> None:
        """Log a message about a node, from this process or from its run on a pool."""
        log_message(self._log, node, message)

    def _find_links(self, context: RunContext, prefect_run: str) -> None:
        """Find the existing pages: MLflow's, and the run's other artifacts."""
        with suppress(Exception):  # as in `_show`
            urls = context.tracker.urls
            self._links |= {text: urls[key] for key, text in MLFLOW.items() if key in urls}
            found = prefect_api.artifacts(UUID(prefect_run))
            self._links |= {text: found[key] for key, text in ARTIFACTS.items() if key in found}

    def _show(self) -> None:
        about = self._about()
        text = self.text(about)
        if text == self._shown:
            return
        try:
            if not self._artifact:
                made = create_markdown_artifact(markdown=text, key="overview", description=about)
                self._artifact = str(made)
            else:
                replace_artifact(self._artifact, text, about)
            self._shown = text
        except Exception as error:  # the page is only for display
            self._log.debug("the overview is not shown: %s", error)

    def _about(self) -> str:
        nodes = self._plan.nodes
        states = [self._states.get(node.name, "") for node in nodes]
        ended = sum(state in ("done", "reused") for state in states)
        return f"{ended} of {len(nodes)} tasks ended, {states.count('reused')} of them reused"

    def text(self, about: str) -> str:
        """The current text of the page."""
        totals = self._plan.document()["totals"]
        made = f"{totals['run']} artifacts to make, {totals['reuse']} to reuse"
        costs = [f"about {duration(totals['wall_s'])}"] if totals["wall_s"] else []
        costs += [f"at most {totals['memory_gb']:.2g} GB of memory"] if totals["memory_gb"] else []
        links = " · ".join(f"[{text}]({url})" for text, url in self._links.items())
        lines = [f"**Plan**: {', '.join([made, *costs])}", f"**Now**: {about}", links]
        lines += [f"note: {note}" for note in self._plan.notes]
        live = read_live(self._root, self._run_id)
        rows = [self._row(node, live.get(node.name, LiveState())) for node in self._plan.nodes]
        return "\n\n".join([*filter(None, lines), markdown_rows(COLUMNS, rows)])

    def _row(self, node: Node, now: LiveState) -> list[str]:
        """A task's cells, as in COLUMNS: planned costs, current state."""
        names = {row_name(node, key) for key in node.products}
        planned = [row for row in self._plan.rows if row["name"] in names]
        is_reused = all(row["state"] == "reuse" for row in planned)
        seconds = self._plan.seconds.get(node.name, 0.0)
        memory = max((row["memory_gb"] for row in planned), default=0.0)
        why = dict.fromkeys(text_of(reason) for row in planned for reason in row["reasons"])
        state = self._states.get(node.name, "")
        is_running = state == "running"
        return [
            f"**{node.name}**" if is_running else node.name,
            str(now.get("state", state)) if is_running else state or ("to reuse" if is_reused else "to come"),
            cell("; ".join(why)),
            f"about {duration(seconds)}" if seconds else "",
            f"{memory:.2g} GB" if memory and not is_reused else "",
            amount_text(now) if "total" in now else "",
            time_text(left_s(now)) if is_running else "",
            losses(now),
            f"[page]({self._pages[node.name]})" if node.name in self._pages else "",
        ]


def cell(text: str) -> str:
    """`text` escaped for a markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


def log_message(log: Log, node: str, message: Message) -> None:
    """Write a node's message to the log of a Prefect run, except progress."""
    if "warning" in message:
        log.warning("%s: %s", node, message["warning"])
    elif "error" in message:
        log.error("%s: %s", node, message["error"])
    elif step := message.get("resumed"):
        log.info("%s: continues from step %s", node, step)
        for damage in message.get("damages", []):
            log.warning("%s: skipped as damaged: %s", node, damage)
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
