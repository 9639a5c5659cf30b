"""The report of a sweep: collected from its ledger, stored in its folder, shown in MLflow and Prefect."""

import base64
import shlex
from contextlib import suppress
from pathlib import Path

from atelier.engine.config.direction import is_held_out_loss, is_higher_better
from atelier.engine.io.storage import is_local, join, local_path
from atelier.engine.io.user_folders import own_folder
from atelier.flows.sweep.session import Session
from atelier.infra.report.scaling_law import Trained, batch_law, laws, lowest, optima
from atelier.infra.report.sweep_content import SweepContent, SweepRow, importances
from atelier.infra.report.sweep_report import said_of_laws, to_markdown, write_sweep_report
from atelier.infra.store.run_manifest import measured

FOLDER = "report"
BUDGETS = (1, 10, 100)  # multiples of the largest training's FLOPs; the report names the best model for each


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
    is_loss = is_held_out_loss(metric) and not is_higher_better(session.direction)
    trained = trainings(rows) if is_ranked and is_loss else []
    found = laws(trained)
    largest = max((one.flops for one in trained), default=0.0)
    budgets = [times * largest for times in BUDGETS]
    is_joint = len(found) == 1 and found[0].params is None
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
        trained=lowest(trained),
        laws=found,
        optima=optima(trained, found[0], budgets) if is_joint else [],
        batch_law=batch_law(trained),
    )


def trainings(rows: list[SweepRow]) -> list[Trained]:
    """The points for scaling laws; older ones lack the batch."""
    found = []
    for row in rows:
        params, tokens = (int(row.facts.get(name, 0)) for name in ("params", "tokens"))
        steps = row.facts.get("step", 0.0) - row.facts.get("started_at", 0.0)
        if row.value is not None and params and tokens:
            found.append(Trained(params, tokens, row.value, round(tokens / steps) if steps > 0 else 0))
    return found


def show(session: Session, *, is_failed: bool) -> list[str]:
    """Write the report, show it in MLflow and Prefect, and return lines with its laws and addresses. An
    unavailable server costs only its page.
    """
    content, best = content_of(session), session.best()
    folder = _folder(session)
    paths = write_sweep_report(folder, content)
    places = [f"law      {said}" for said in said_of_laws(content)]
    places.append(f"report   {folder / 'report.html'}")
    some = next(iter(session.points.values()), None)
    if some is None:
        return places
    tracker, pool = some.frozen.tracker, some.frozen.pool
    text = to_markdown(content)
    if tracker.kind == "mlflow":
        from atelier.infra.tracking.direct import PlottedPoint, show_sweep  # late: MLflow, two seconds

        with suppress(Exception):  # the page is only for display
            pages = show_sweep(
                tracker.uri,
                session.store,
                flow=session.flow,
                sweep=session.ledger.id,
                tags={"atelier.metric": content.metric, "atelier.direction": content.direction},
                markdown=text,
                paths=paths,
                trajectories=_trajectories(session),
                points=[
                    PlottedPoint(entry.words, row.values, entry.value)
                    for entry, row in zip(session.ledger.entries(), content.rows, strict=True)
                    if entry.value is not None
                ],
                keys=[key.lstrip("+") for key in session.keys],
                metric=content.metric,
                is_lower_better=content.direction != "maximize",
                numbers={f"best/{content.metric}": best.value} if best and best.value is not None else {},
                is_failed=is_failed,
            )
            places += [f"{name:<8} {url}" for name, url in pages.items()]
    if pool.is_served:
        from atelier.infra.stack.prefect_api import put_markdown  # late: Prefect

        for picture in paths:
            if picture.suffix == ".png":
                data = base64.b64encode(picture.read_bytes()).decode()
                text = text.replace(f"({picture.name})", f"(data:image/png;base64,{data})")
        with suppress(Exception):  # as above
            page = put_markdown(f"sweep-{session.ledger.id}", text, content.title)
            places.append(f"report   {page}")
    return places


def _trajectories(session: Session) -> list[str]:
    """Fingerprints of the trainings with the compared metric."""
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
    return own_folder() / "sweeps" / session.ledger.id / FOLDER
