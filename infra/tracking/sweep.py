"""The sweep's own run in MLflow: its report, and the way to the parallel coordinates of its points."""

from collections.abc import Sequence
from pathlib import Path

from infra.store import Store
from infra.tracking.backend import NOTE, Backend
from infra.tracking.flow import forget_credentials_of_others, tracking_uri
from infra.tracking.page import Links


def show_sweep(
    uri: str, store: Store, *, flow: str, sweep: str, markdown: str, paths: Sequence[Path], is_failed: bool
) -> str:
    """Put the report into the sweep's run, which its points' runs are under; the run's address, '' when
    MLflow has no page or knows of no such sweep. Raises what MLflow's client raises.
    """
    address = tracking_uri(uri, store)
    forget_credentials_of_others(address)
    backend = Backend(address, f"{store.root}/mlartifacts")
    experiment = backend.experiment(flow)
    run = backend.find_run([experiment], {"atelier.sweep": sweep, "atelier.kind": "sweep"})
    if run is None:
        return ""
    run_id = run.info.run_id
    backend.files(run_id, [str(path) for path in paths], "report")
    links = Links(backend.page)
    for path in paths:
        markdown = markdown.replace(f"]({path.name})", f"]({links.file(run_id, f'report/{path.name}')})")
    backend.tag(run_id, {NOTE: markdown})
    backend.end_run(run_id, "FAILED" if is_failed else "FINISHED")
    return links.report(experiment, run_id) if links.page else ""
