"""`work`, the generic flow on every pool: run one node for its parent run. Its Prefect page shows log lines,
a progress bar and an SVG of the loss; its live file is for the parent's page. A thread writes them, so an
unavailable server delays nothing.
"""

import base64
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import cast
from uuid import UUID
from xml.sax.saxutils import escape

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State
from prefect.context import hydrated_context, serialize_context
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed

from atelier.engine.config.base import JsonObject
from atelier.engine.config.error import AtelierError, StoppedError
from atelier.engine.config.message import Message
from atelier.flows.deployments.cancellation import present, watching_worker
from atelier.flows.deployments.live import LiveProgress, left_s
from atelier.flows.deployments.overview_page import (
    EVERY_S,
    amount_text,
    log_message,
    losses,
    time_text,
)
from atelier.flows.deployments.task_request import TaskRequest
from atelier.flows.run.execute import stopping
from atelier.flows.run.pools import site_of
from atelier.flows.run.prefect_page import replace_artifact
from atelier.flows.run.work import work
from atelier.infra.dag import Node
from atelier.infra.launch.gang import DiedError
from atelier.infra.launch.slots import core_slots
from atelier.infra.run.context import RunContext
from atelier.infra.run.run_log import RunLog
from atelier.infra.store.local_folders import scratch_of
from atelier.infra.store.store import Store, default_root
from atelier.infra.tracking.factory import open_tracker

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 300, 56, 36, 16
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
MOST = 400  # points of a curve
PICTURE_S = 15.0  # between two pictures


def run(_: str, parameters: JsonObject) -> State:
    """Run the node of `parameters`. Returns the final state."""
    request = TaskRequest.model_validate(parameters)
    node, about, pool = request.node, request.run, request.run.pool
    store = Store(default_root())
    tracker = open_tracker(
        about.tracker,
        store,
        flow=about.flow,
        command=about.command,
        run_id=about.id,
        config={},
        is_part=True,
    )
    tracker.link(**about.links)
    # for this run alone: several nodes may share a disk
    scratch = scratch_of(store, about.id) / str(flow_run.id)[:13]
    with TaskPage(store.root, about.id, node) as task_page:
        context = RunContext(
            store=store,
            slots=core_slots(pool, store, request.gang),
            scratch=scratch,
            pool=pool,
            site=site_of(pool),
            run_id=about.id,
            flow=about.flow,
            command=about.command,
            listener=RunLog(scratch, task_page.on_message),
            tracker=tracker,
            links=dict(about.links),
            resume=about.resume,
            place=request.gang,
        )
        orphaned = threading.Event()
        status = "failed"
        try:
            with stopping(context.stop), present(context.stop), watching_worker(context.stop, orphaned):
                if context.place is not None and not context.place.is_first:
                    context.follow(node, "atelier.engine.train", node.ranks, node.threads)
                    return Completed(message=f"node {context.place.index} of {context.place.size} is done")
                work(node, context, {}, {})
            status = "finished"
            return Completed(
                message=", ".join(f"{p.name} {p.fingerprint[:8]}" for p in node.products.values())
            )
        except StoppedError as error:
            status = "stopped"
            if orphaned.is_set():
                return Crashed(message="its worker died; it stopped at a checkpoint")
            return Cancelled(message=str(error))
        except DiedError as error:
            return Crashed(message=str(error))
        except AtelierError as error:
            return Failed(message=str(error))
        finally:
            tracker.close(status)


def loss_svg(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """An SVG of the curves, each a list of (step, loss in nats a token)."""
    points = [point for curve in curves.values() for point in curve if math.isfinite(point[1])]
    if not points:
        return ""
    last = max(step for step, _ in points) or 1
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    high = high if high > low else low + 1.0

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * step / last

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    parts = [_axes(last, low, high, x, y)]
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in thinned(curve) if math.isfinite(v))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(
            f'<text x="{WIDTH - 16}" y="{TOP + 14 * number + 10}" text-anchor="end" fill="{colour}">'
            f"{escape(name)} {curve[-1][1]:.3f}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>"
    )


def thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST points, evenly spaced, with the last one."""
    every = max(1, math.ceil(len(curve) / MOST))
    return [*curve[::every], curve[-1]]


def as_markdown(svg: str, title: str) -> str:
    """The picture as markdown with inline data, so that Prefect's page loads nothing."""
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _axes(
    last: float, low: float, high: float, x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    parts = []
    for i in range(5):
        loss = low + (high - low) * i / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#e5e5e5"/>'
            f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end" fill="#555">{loss:.2f}</text>'
        )
        step = last * i / 4
        parts.append(
            f'<text x="{x(step):.1f}" y="{HEIGHT - 18}" text-anchor="middle" fill="#555">{step:.0f}</text>'
        )
    unit = "step; loss in nats a token"
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle" fill="#555">{unit}</text>')
    return "".join(parts)


class TaskPage:
    """Shows a node's messages on its Prefect page and in its live file."""

    def __init__(self, root: str, run_id: str, node: Node) -> None:
        self._log = get_run_logger()
        self._live = LiveProgress(root, run_id, node.name)
        self._curves: dict[str, list[tuple[float, float]]] = {}
        self._changed, self._ended = threading.Event(), threading.Event()
        self._context = serialize_context()
        self._progress: UUID | None = None
        self._picture, self._drawn = "", 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "TaskPage":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def on_message(self, node: str, message: Message) -> None:
        self._live.on_message(message)
        log_message(self._log, node, message)
        if "progress" in message:
            for role, loss in _losses_of(message).items():
                self._curves.setdefault(role, []).append((float(message["progress"]), loss))
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
        with suppress(Exception):  # the page is only for display
            self._show_progress()
            if self._curves and time.monotonic() - self._drawn >= picture_s:
                self._drawn = time.monotonic()
                self._show_loss()

    def _show_progress(self) -> None:
        now = self._live.now
        share = 100.0 * now.get("progress", 0) / max(now.get("total", 0), 1)
        left = time_text(left_s(now))
        about = f"{amount_text(now)}, {left} left  {losses(now)}"
        if self._progress is None:
            made = create_progress_artifact(progress=share, key="progress", description=about)
            self._progress = cast(UUID, made)  # the call is not awaited here
        else:
            update_progress_artifact(artifact_id=self._progress, progress=share, description=about)

    def _show_loss(self) -> None:
        now = self._live.now
        done, total = now.get("progress", 0), now.get("total", 0)
        about = f"after {done} of {total} {now.get('unit', '')}: {losses(now)}"
        text = as_markdown(loss_svg(self._curves), "loss")
        if self._picture:
            replace_artifact(self._picture, text, about)
        else:
            self._picture = str(create_markdown_artifact(markdown=text, key="loss", description=about))


def _losses_of(message: Message) -> dict[str, float]:
    found = message.get("loss")
    return {str(k): float(v) for k, v in found.items()} if isinstance(found, dict) else {}
