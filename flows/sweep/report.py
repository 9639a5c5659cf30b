"""The report of a sweep: gathered from its ledger, kept in its folder, shown in MLflow and on the Prefect
page.
"""

import base64
import shlex
from contextlib import suppress
from pathlib import Path

from atelier.engine.io.storage import is_local, join, local_path
from atelier.flows.sweep.session import Session
from atelier.infra.report.scaling_law import Trained, laws, lowest
from atelier.infra.report.sweep_report import (
    SweepContent,
    SweepRow,
    importances,
    to_markdown,
    write_sweep_report,
)
from atelier.infra.store.run_manifest import measured

FOLDER = "report"


def content_of(session: Session) -> SweepContent:
    """The report's content from the ledger, with the points of earlier calls."""
    keys = [key.lstrip("+") for key in session.keys]
    rows = []
    for entry in session.ledger.entries():
        pairs = (word.lstrip("+").partition("=") for word in entry.words)
        words = {key: value for key, _, value in pairs}
        values = {key: words[key] for key in keys if key in words}
        rows.append(SweepRow(entry.number, entry.state, values, entry.value, entry.error, entry.facts))
    best = session.best()
    some = next(iter(session.points.values()), None)
    metric = session.metric_of(some) if some is not None else session.metric
    is_ranked = not session.unranked()
    trained = trainings(rows) if is_ranked and metric.endswith("eval_loss") else []
    return SweepContent(
        title=f"sweep {session.ledger.id}",
        command=session.command,
        metric=metric,
        direction=session.direction,
        rows=rows,
        best=best.number if best is not None else None,
        best_command=f"atelier {session.flow} {shlex.join(best.words)}" if best is not None else "",
        importance=importances(rows, session.direction) if is_ranked else {},
        notes=[*session.notes, *filter(None, [session.unranked()])],
        trained=trained,
        laws=laws(trained),
    )


def trainings(rows: list[SweepRow]) -> list[Trained]:
    """The points as (parameters, tokens, loss), the best one of each size and length, for scaling laws."""
    known = [row for row in rows if row.value is not None and {"params", "tokens"} <= row.facts.keys()]
    return lowest([Trained(int(r.facts["params"]), int(r.facts["tokens"]), r.value or 0.0) for r in known])


def show(session: Session, *, is_failed: bool) -> list[str]:
    """Write the report, show it in MLflow and on the Prefect page, and return its addresses. An unavailable
    server costs only its page.
    """
    content, best = content_of(session), session.best()
    folder = _folder(session)
    paths = write_sweep_report(folder, content)
    places = [str(folder / "report.html")]
    some = next(iter(session.points.values()), None)
    if some is None:
        return places
    tracker, pool = some.frozen.tracker, some.frozen.pool
    text = to_markdown(content)
    if tracker.kind == "mlflow":
        from atelier.infra.tracking.direct import show_sweep  # MLflow: two seconds

        with suppress(Exception):  # a page is only for display
            page = show_sweep(
                tracker.uri,
                session.store,
                flow=session.flow,
                sweep=session.ledger.id,
                markdown=text,
                paths=paths,
                trajectories=_trajectories(session),
                numbers={f"best/{content.metric}": best.value} if best and best.value is not None else {},
                is_failed=is_failed,
            )
            places += [page] if page else []
    if pool.is_served:
        from atelier.infra.stack.prefect_api import put_markdown  # Prefect

        for picture in paths:
            if picture.suffix == ".png":
                data = base64.b64encode(picture.read_bytes()).decode()
                text = text.replace(f"({picture.name})", f"(data:image/png;base64,{data})")
        with suppress(Exception):  # as above
            places.append(put_markdown(f"sweep-{session.ledger.id}", text, content.title))
    return places


def _trajectories(session: Session) -> list[str]:
    """Fingerprints of the trainings that the points are compared by."""
    found: dict[str, None] = {}
    for entry in session.ledger.entries():
        there = measured(session.store, entry.rows, entry.metric)
        if there is not None and (trajectory := there[1].parents.get("trajectory")):
            found[trajectory] = None
    return list(found)


def _folder(session: Session) -> Path:
    folder = session.ledger.folder
    if is_local(folder):
        return local_path(join(folder, FOLDER))
    return Path.home() / ".cache" / "atelier" / "sweeps" / session.ledger.id / FOLDER
