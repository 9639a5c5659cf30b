"""The tracker's calls to MLflow, each safe to repeat, and a cache of MLflow ids. Importing this module takes
two seconds: only the tracker's thread does.
"""

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.io.local_url import path_of, sqlite_file
from atelier.engine.io.user_folders import user_name
from atelier.infra.stack.database_check import MLFLOW, cache_tables
from atelier.infra.tracking.address import without_secret
from atelier.infra.tracking.retry_worker import is_lasting
from atelier.infra.tracking.views import TAG as VIEW

Item = TypeVar("Item")


SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_UV_AUTO_DETECT": "false",  # a uv.lock in the working directory is no part of a model
    # the tracker retries itself, without blocking for minutes inside one call
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}
for _name, _value in SETTINGS.items():
    os.environ.setdefault(_name, _value)  # before the import: MLflow reads some of them only then

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations between MLflow and its own libraries
    from mlflow import MlflowClient
    from mlflow.entities import (
        Dataset,
        DatasetInput,
        InputTag,
        LoggedModel,
        LoggedModelInput,
        LoggedModelOutput,
        Metric,
        Param,
        Run,
        RunTag,
    )
    from mlflow.exceptions import MlflowException

NOTE = "mlflow.note.content"  # shown as description of a run, experiment or logged model
BATCH = 1000  # MLflow's limit for metrics in one request
FEW = 100  # and for params and tags
DIGEST = 36  # characters of a data set's digest that MLflow keeps
PARAM = 500
TAG = 8000


@dataclass(frozen=True)
class MetricPoint:
    key: str
    value: float
    step: int
    time: float


@dataclass(frozen=True)
class TrackedData:
    """A data set that a run read: searchable by `dataset.digest` (36 digits of the fingerprint) and
    `dataset.context`.
    """

    name: str
    kind: str
    fingerprint: str
    context: str
    url: str

    @property
    def digest(self) -> str:
        return self.fingerprint[:DIGEST]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "") + "'"


def plain_name(name: str) -> str:
    """`name` with the characters that MLflow refuses in a model's name replaced."""
    return "".join("-" if c in "/:.%\"'" else c for c in name) or "model"


def tag_filter(tags: Mapping[str, str]) -> str:
    return " AND ".join(f"tags.`{key}` = {quoted(value)}" for key, value in tags.items())


class Backend:
    """One MLflow store: a server or a database."""

    def __init__(self, uri: str, artifacts: str) -> None:
        """`artifacts`: artifact URL when `uri` is a database; a server has its own."""
        # failures are retried and reported by the tracker
        logging.getLogger("mlflow").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self.uri, self.artifacts = uri, artifacts
        path = sqlite_file(uri)
        is_new = path is not None and (not path.exists() or path.stat().st_size == 0)
        self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        default = self.client.get_experiment("0")
        if path is not None and is_new:
            cache_tables(path, MLFLOW, without=("experiments",))
        self.key = hashlib.sha256(f"{uri} {default.creation_time}".encode()).hexdigest()[:16]
        self._experiments: dict[str, str] = {}

    def ping(self) -> None:
        self.client.get_experiment("0")

    def is_lasting(self, error: BaseException) -> bool:
        """True for a permanent error; False when a retry may succeed."""
        return is_lasting(error) or not isinstance(error, MlflowException | OSError)

    @property
    def page(self) -> str:
        """Base URL of MLflow's pages: the server, or '' (links relative to whatever serves the database).
        $ATELIER_MLFLOW_URL overrides it when browsers reach the server by another name.
        """
        url = os.environ.get("ATELIER_MLFLOW_URL") or without_secret(self.uri)
        return url.rstrip("/") if self.uri.startswith("http") else ""

    def experiment(self, name: str) -> str:
        if name not in self._experiments:
            found = self.client.get_experiment_by_name(name)
            if found is not None and found.lifecycle_stage == "deleted":
                self.client.restore_experiment(found.experiment_id)
            self._experiments[name] = found.experiment_id if found is not None else self._new_experiment(name)
        return self._experiments[name]

    def _new_experiment(self, name: str) -> str:
        location = None if self.page else f"{self.artifacts.rstrip('/')}/{plain_name(name)}"
        if location and (folder := path_of(location)):
            Path(folder).mkdir(
                parents=True, exist_ok=True
            )  # by which a store that is moved knows it as its own
        note = f"runs of `atelier {name}`"
        try:
            return self.client.create_experiment(name, artifact_location=location, tags={NOTE: note})
        except MlflowException as error:
            found = self.client.get_experiment_by_name(name)  # another process was first
            if found is None:
                raise error
            return found.experiment_id

    def view(self, experiment: str, key: str, state: JsonObject) -> None:
        """Save a view of the experiment's runs, which links name by `key`."""
        tag, text = f"{VIEW}{key}", json.dumps(state)
        if self.client.get_experiment(experiment).tags.get(tag) != text:
            self.client.set_experiment_tag(experiment, tag, text)

    def experiments(self) -> list[str]:
        return [e.experiment_id for e in self.client.search_experiments()]

    # runs

    def find_run(self, experiments: Sequence[str], tags: Mapping[str, str]) -> Run | None:
        """The oldest run with these tags, so that concurrent creators agree on one."""
        found = self.client.search_runs(
            list(experiments), tag_filter(tags), max_results=1, order_by=["attributes.start_time ASC"]
        )
        return found[0] if found else None

    def runs(self, experiment: str, query: str) -> list[Run]:
        return list(self.client.search_runs([experiment], query))

    def run(self, run_id: str) -> Run | None:
        """The run, or None when it was deleted."""
        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def new_run(
        self, experiment: str, name: str, tags: Mapping[str, str], started: float | None = None
    ) -> str:
        about = {"mlflow.user": user_name(), **_cut(tags)}
        begin = round(started * 1000) if started else None
        return self.client.create_run(experiment, start_time=begin, tags=about, run_name=name).info.run_id

    def delete_run(self, run_id: str) -> None:
        """Delete a run; MLflow can restore it for a while."""
        self.client.delete_run(run_id)

    def reopen(self, run_id: str) -> None:
        self.client.update_run(run_id, status="RUNNING")

    def end_run(self, run_id: str, status: str) -> None:
        self.client.set_terminated(run_id, status)

    def drop_run(self, run_id: str) -> None:
        self.client.delete_run(run_id)

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        for part in _parts(list(_cut(tags).items()), FEW):
            self.client.log_batch(run_id, tags=[RunTag(k, v) for k, v in part])

    def params(self, run_id: str, params: Mapping[str, Json], ids: Iterable[str] = ()) -> None:
        """Log the parameters whose names are not in `ids` (MLflow refuses a changed one)."""
        new = [(k, str(v)[:PARAM]) for k, v in params.items() if k not in set(ids) and str(v) != ""]
        for part in _parts(new, FEW):
            self.client.log_batch(run_id, params=[Param(k, v) for k, v in part])

    def points(
        self,
        run_id: str,
        points: Sequence[MetricPoint],
        model_id: str | None = None,
        data: TrackedData | None = None,
    ) -> None:
        """Log metric points on the run and, with `model_id`, on that model too, as measured on `data`."""
        about = {"model_id": model_id}
        if data is not None:
            about |= {"dataset_name": data.name, "dataset_digest": data.digest}
        for part in _parts(list(points), BATCH):
            metrics = [Metric(p.key, p.value, round(p.time * 1000), p.step, **about) for p in part]
            self.client.log_batch(run_id, metrics=metrics)

    def points_at(self, run_id: str, keys: Iterable[str], step: int) -> list[MetricPoint]:
        """The points of a run at `step`. Logging them again for a model adds no points to the run."""
        return [
            MetricPoint(key, m.value, m.step, m.timestamp / 1000)
            for key in keys
            for m in self.client.get_metric_history(run_id, key)
            if m.step == step
        ]

    def steps(self, run: Run) -> set[tuple[str, int]]:
        """(metric, step) of all points that the run already has."""
        return {
            (key, m.step)
            for key in run.data.metrics
            for m in self.client.get_metric_history(run.info.run_id, key)
        }

    def inputs(self, run_id: str, data: Sequence[TrackedData] = (), models: Sequence[str] = ()) -> None:
        run = self.client.get_run(run_id)
        there = {m.model_id for m in run.inputs.model_inputs} if run.inputs else set()
        sets = [
            DatasetInput(
                Dataset(d.name, d.digest, source_type=d.kind, source=d.url),
                [InputTag("mlflow.data.context", d.context)],
            )
            for d in data
        ]
        new = [LoggedModelInput(model_id) for model_id in models if model_id not in there]
        if sets or new:
            self.client.log_inputs(run_id, datasets=sets or None, models=new or None)

    def output(self, run_id: str, model_id: str, step: int) -> None:
        run = self.client.get_run(run_id)
        if not run.outputs or model_id not in {m.model_id for m in run.outputs.model_outputs}:
            self.client.log_outputs(run_id, [LoggedModelOutput(model_id, step=step)])

    def files(self, run_id: str, paths: Sequence[str], folder: str) -> None:
        for path in paths:
            self.client.log_artifact(run_id, path, folder)

    def file_names(self, run_id: str, folder: str) -> set[str]:
        """Names of a run's artifacts in a folder."""
        return {file.path.rsplit("/", 1)[-1] for file in self.client.list_artifacts(run_id, folder)}

    def picture(self, run_id: str, svg: str) -> None:
        self.client.log_text(run_id, svg, "lineage/lineage.svg")

    # logged models

    def find_models(self, experiments: Sequence[str], tags: Mapping[str, str]) -> list[LoggedModel]:
        return list(
            self.client.search_logged_models(
                list(experiments), filter_string=tag_filter(tags), max_results=1000
            )
        )

    def new_model(
        self,
        experiment: str,
        name: str,
        *,
        run_id: str,
        tags: Mapping[str, str],
        params: Mapping[str, Json],
        kind: str,
    ) -> str:
        values = {k: str(v)[:PARAM] for k, v in params.items() if str(v) != ""}
        model = self.client.create_logged_model(
            experiment,
            name=plain_name(name),
            source_run_id=run_id,
            tags={"mlflow.user": user_name(), **_cut(tags)},
            params=values,
            model_type=kind,
        )
        self.client.finalize_logged_model(model.model_id, "READY")
        return model.model_id

    def tag_model(self, model_id: str, tags: Mapping[str, str]) -> None:
        self.client.set_logged_model_tags(model_id, _cut(tags))

    def drop_model(self, model_id: str) -> None:
        self.client.delete_logged_model(model_id)

    # registered versions

    def alias(self, name: str, alias: str, version: str) -> None:
        self.client.set_registered_model_alias(name, alias, version)

    def describe_version(self, name: str, version: str, text: str) -> None:
        """Write a version's page; the registered model shows that of its highest version."""
        self.client.update_model_version(name, version, description=text)
        highest = max(int(v.version) for v in self.client.search_model_versions(f"name = {quoted(name)}"))
        if highest == int(version):
            self.client.update_registered_model(name, description=text)


def _cut(tags: Mapping[str, str]) -> dict[str, str]:
    return {k: str(v)[:TAG] for k, v in tags.items() if str(v) != ""}


def _parts(items: list[Item], size: int) -> list[list[Item]]:
    return [items[i : i + size] for i in range(0, len(items), size)]
