"""MLflow of commands without a tracker: aliases of registered versions, the run of a sweep, pages to open."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atelier.infra.store.store import Store
from atelier.infra.tracking.address import tracking_address
from atelier.infra.tracking.backend import NOTE, Backend, MetricPoint, tag_filter
from atelier.infra.tracking.own_database import own_files
from atelier.infra.tracking.page import Links, linked
from atelier.infra.tracking.views import sweep_view


@dataclass(frozen=True)
class PlottedPoint:
    """A finished point: its overrides, swept keys and compared value."""

    words: Sequence[str]
    values: Mapping[str, str]
    value: float


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
    points: Sequence[PlottedPoint],
    keys: Sequence[str],
    metric: str,
    is_lower_better: bool,
    numbers: Mapping[str, float],
    is_failed: bool,
) -> dict[str, str]:
    """Write the report to the sweep's run, the parent of its points' runs, with links that plot `metric` by
    the swept keys and compare the runs of all `trajectories`. Returns the addresses of report and plot, {}
    without an MLflow page or such a sweep. Raises errors of MLflow's client.
    """
    backend = Backend(tracking_address(uri, store), own_files(store))
    experiment = backend.experiment(flow)
    run = backend.find_run([experiment], {"atelier.sweep": sweep, "atelier.kind": "sweep"})
    if run is None:
        return {}
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
    _write_points(backend, experiment, sweep, points, metric)
    backend.view(experiment, sweep, sweep_view(sweep, keys, metric, is_lower_better=is_lower_better))
    chart = links.view(experiment, sweep, is_chart=True)
    title = f"{metric} by {', '.join(keys)}"
    markdown = f"{linked(title, chart)}\n\n{markdown}"
    if len(runs) > 1:
        beside = linked("All points beside each other: parallel coordinates", links.beside(runs))
        markdown = f"{beside}\n\n{markdown}"
    backend.tag(run_id, {**tags, NOTE: markdown})
    # the step is the number of finished points, so the curve shows progress as the sweep grows
    best = [MetricPoint(key, value, len(trajectories), time.time()) for key, value in numbers.items()]
    backend.points(run_id, best)
    backend.end_run(run_id, "FAILED" if is_failed else "FINISHED")
    return {"report": links.report(experiment, run_id), "plot": chart} if links.page else {}


def _write_points(
    backend: Backend, experiment: str, sweep: str, points: Sequence[PlottedPoint], metric: str
) -> None:
    """Write each point's value and swept keys to its flow runs, so that MLflow plots one by the other."""
    query = f"tags.`atelier.sweep` = '{sweep}' AND tags.`atelier.kind` = 'flow'"
    for run in backend.runs(experiment, query):
        given = set(shlex.split(run.data.tags.get("mlflow.source.name", "")))
        mine = next((point for point in points if given >= set(point.words)), None)
        if mine is None or metric in run.data.metrics:
            continue
        backend.params(run.info.run_id, mine.values, run.data.params)
        backend.points(run.info.run_id, [MetricPoint(metric, mine.value, 0, time.time())])


def run_page(store: Store, run_id: str) -> str:
    """The page of a flow's run; '' if the server in use has none. Raises what MLflow's client raises."""
    backend = Backend(tracking_address("", store), own_files(store))
    found = backend.find_run(backend.experiments(), {"atelier.run": run_id, "atelier.kind": "flow"})
    return Links(backend.page).run(found.info.experiment_id, found.info.run_id) if found is not None else ""


def model_pages_of(store: Store, fingerprint: str) -> dict[str, str]:
    """Pages of a model by what they show: `registered` (its newest version), `model` (where it is logged,
    with its lineage). Raises as above.
    """
    backend = Backend(tracking_address("", store), own_files(store))
    links, pages = Links(backend.page), dict[str, str]()
    mine = {"atelier.fingerprint": fingerprint}
    versions = backend.client.search_model_versions(tag_filter(mine))
    if versions:
        newest = max(versions, key=lambda one: one.creation_timestamp or 0)
        pages["registered"] = links.registered(newest.name, str(newest.version))
    models = backend.find_models(backend.experiments(), mine | {"atelier.kind": "model"})
    if models:
        pages["model"] = links.model(str(models[0].experiment_id), models[0].model_id)
    return pages
