"""Trackers on small databases, and their content."""

from collections import Counter
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import LoggedModel, Run

from atelier.engine.config.run_file import SegmentAddress
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import Followed
from atelier.infra.tracking.curve import curves_of
from atelier.infra.tracking.mlflow_tracker import MlflowTracker
from tests.infra.records import Family

DATA = {"tokens.main": "a" * 64}


def uri(root: Path) -> str:
    return f"sqlite:///{root}/mlflow.db"


def tracker(root: Path, run_id: str = "run-1", flow: str = "demo", **about: Any) -> MlflowTracker:
    return MlflowTracker(
        uri(root),
        Store(str(root)),
        flow=flow,
        command=f"atelier {flow}",
        run_id=run_id,
        config={"train": {"steps": 9}},
        **about,
    )


def client(root: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=uri(root), registry_uri=uri(root))


def runs(root: Path, query: str = "") -> list[Run]:
    mlflow = client(root)
    return list(mlflow.search_runs([e.experiment_id for e in mlflow.search_experiments()], query))


def models(root: Path, query: str) -> list[LoggedModel]:
    mlflow = client(root)
    return list(mlflow.search_logged_models([e.experiment_id for e in mlflow.search_experiments()], query))


def steps(root: Path, run: Run, key: str) -> list[int]:
    return [m.step for m in client(root).get_metric_history(run.info.run_id, key)]


def follow_once(
    tracked: MlflowTracker, *segments: SegmentAddress, role: str = "model", status: str = "FINISHED"
) -> None:
    task = tracked.start_task("train", "train")
    followed = Followed(segments=segments, role=role, params={"model": {"hidden": 32}})
    tracked.follow(curves_of([followed]), task).stop(status)
    tracked.end_task(task, status)


def publish_all(tracked: MlflowTracker, made: Family) -> None:
    task = tracked.start_task("train", "train")
    roles = [
        Followed(segments=(segment,), role=role, teacher="teacher" if "student" in role else "")
        for role, segment in made.segments.items()
    ]
    tracked.follow(curves_of(roles), task).stop()
    for record in made.records.values():
        tracked.record(record)
    tracked.end_task(task, "FINISHED", {"loss": 2.0})


def contents(root: Path) -> Counter[str]:
    """How much there is in MLflow, flow and task runs and their links aside."""
    counted: Counter[str] = Counter()
    for run in runs(root, "tags.`atelier.kind` = 'trajectory'"):
        run_id = run.info.run_id
        counted["runs"] += 1
        counted["points"] += sum(
            len(client(root).get_metric_history(run_id, key)) for key in run.data.metrics
        )
        sets, read = inputs(root, run_id)
        counted["edges"] += len(sets) + len(read) + len(outputs(root, run_id))
    counted["models"] = len(models(root, "tags.`atelier.flow` = 'demo'"))
    return counted


def inputs(root: Path, run_id: str) -> tuple[dict[tuple[str, str], str], list[str]]:
    """(context, kind) -> digest of the data sets a run read, and the models that it read."""
    found = client(root).get_run(run_id).inputs  # a search leaves models out
    if found is None:
        return {}, []
    sets = {(one.tags[0].value, one.dataset.source_type): one.dataset.digest for one in found.dataset_inputs}
    return sets, [model.model_id for model in found.model_inputs]


def outputs(root: Path, run_id: str) -> list[str]:
    found = client(root).get_run(run_id).outputs
    return [model.model_id for model in found.model_outputs] if found is not None else []
