"""The report of a sweep: gathered from its ledger, kept in its folder, shown in MLflow and on the Prefect
page.
"""

import base64
import shlex
from contextlib import suppress
from pathlib import Path

from engine.storage import is_local, join, local_path
from flows.sweep.session import Session
from infra.sweep_report import SweepContent, SweepRow, importances, to_markdown, write_sweep_report

FOLDER = "report"


def content_of(session: Session) -> SweepContent:
    """All that the ledger knows, of earlier calls too."""
    keys = [key.lstrip("+") for key in session.keys]
    rows = []
    for entry in session.ledger.entries():
        pairs = (word.lstrip("+").partition("=") for word in entry.words)
        words = {key: value for key, _, value in pairs}
        values = {key: words[key] for key in keys if key in words}
        rows.append(SweepRow(entry.number, entry.state, values, entry.value, entry.error))
    best = session.best()
    some = next(iter(session.points.values()), None)
    return SweepContent(
        title=f"sweep {session.ledger.id}",
        command=session.command,
        metric=session.metric_of(some) if some is not None else session.metric,
        direction=session.direction,
        rows=rows,
        best=best.number if best is not None else None,
        best_command=f"atelier {session.flow} {shlex.join(best.words)}" if best is not None else "",
        importance=importances(rows, session.direction),
    )


def show(session: Session, *, is_failed: bool) -> list[str]:
    """Write the report and show it where people look; where it lies. A server that is away costs nothing but
    its page.
    """
    content = content_of(session)
    folder = _folder(session)
    paths = write_sweep_report(folder, content)
    places = [str(folder / "report.html")]
    some = next(iter(session.points.values()), None)
    if some is None:
        return places
    tracker, pool = some.frozen.tracker, some.frozen.pool
    text = to_markdown(content)
    if tracker.kind == "mlflow":
        from infra.tracking.sweep import show_sweep  # MLflow: two seconds

        with suppress(Exception):  # as every page: only for looking at
            page = show_sweep(
                tracker.uri,
                session.store,
                flow=session.flow,
                sweep=session.ledger.id,
                markdown=text,
                paths=paths,
                is_failed=is_failed,
            )
            places += [page] if page else []
    if pool.is_served:
        from infra.stack.api import put_markdown  # Prefect

        picture = folder / "parallel.png"
        if picture.exists():
            data = base64.b64encode(picture.read_bytes()).decode()
            text = text.replace("(parallel.png)", f"(data:image/png;base64,{data})")
        with suppress(Exception):  # as above
            places.append(put_markdown(f"sweep-{session.ledger.id}", text, content.title))
    return places


def _folder(session: Session) -> Path:
    folder = session.ledger.folder
    if is_local(folder):
        return local_path(join(folder, FOLDER))
    return Path.home() / ".cache" / "atelier" / "sweeps" / session.ledger.id / FOLDER
