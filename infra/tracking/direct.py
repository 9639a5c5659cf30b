"""MLflow writes of commands without a tracker: aliases of registered versions, the run of a sweep."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from atelier.infra.store.store import Store
from atelier.infra.tracking.address import tracking_address
from atelier.infra.tracking.backend import NOTE, Backend, MetricPoint
from atelier.infra.tracking.own_database import own_files
from atelier.infra.tracking.page import Links, linked


def show_alias(store: Store, fingerprint: str, alias: str) -> list[str]:
    """Give `alias` to every registered version of the model; returns `name@alias` of each. Raises what
    MLflow's client raises.
    """
    from atelier.infra.tracking.backend import Backend  # imports MLflow: two seconds

    backend = Backend(tracking_address("", store), own_files(store))
    found = []
    for version in backend.client.search_model_versions(f"tags.`atelier.fingerprint` = '{fingerprint}'"):
        backend.alias(version.name, alias, str(version.version))
        found.append(f"{version.name}@{alias}")
    return found


def show_sweep(
    uri: str,
    store: Store,
    *,
    flow: str,
    sweep: str,
    tags: Mapping[str, str],
    markdown: str,
    paths: Sequence[Path],
    trajectories: Sequence[str],
    numbers: Mapping[str, float],
    is_failed: bool,
) -> str:
    """Write the report to the sweep's run, the parent of its points' runs, with a link that compares the runs
    of all `trajectories`. Returns its address, '' without an MLflow page or such a sweep. Raises what
    MLflow's client raises.
    """
    backend = Backend(tracking_address(uri, store), own_files(store))
    experiment = backend.experiment(flow)
    run = backend.find_run([experiment], {"atelier.sweep": sweep, "atelier.kind": "sweep"})
    if run is None:
        return ""
    run_id = run.info.run_id
    backend.files(run_id, [str(path) for path in paths], "report")
    links = Links(backend.page)
    for path in paths:
        markdown = markdown.replace(f"]({path.name})", f"]({links.file(run_id, f'report/{path.name}')})")
    everywhere = backend.experiments()  # a point's run is in the experiment that created it first
    curves = [
        backend.find_run(everywhere, {"atelier.trajectory": one, "atelier.kind": "trajectory"})
        for one in trajectories
    ]
    runs = {curve.info.run_id: curve.info.experiment_id for curve in curves if curve is not None}
    if len(runs) > 1:
        beside = linked("All points beside each other: parallel coordinates", links.beside(runs))
        markdown = f"{beside}\n\n{markdown}"
    backend.tag(run_id, {**tags, NOTE: markdown})
    # the step is the number of finished points, so the curve shows progress as the sweep grows
    points = [MetricPoint(key, value, len(trajectories), time.time()) for key, value in numbers.items()]
    backend.points(run_id, points)
    backend.end_run(run_id, "FAILED" if is_failed else "FINISHED")
    return links.report(experiment, run_id) if links.page else ""
