"""Write runs into MLflow: sweep > flow > task > one run per trajectory. Runs on the tracker's thread."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from atelier.engine.config.base import JsonObject
from atelier.engine.config.record import DATA_KINDS, Record
from atelier.infra.report.lineage import find_trajectory, taught_by
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunInfo, ended, flat, is_number
from atelier.infra.tracking.backend import NOTE, Backend, MetricPoint, TrackedData
from atelier.infra.tracking.known_ids import FlowAddress, IdCache
from atelier.infra.tracking.page import Links
from atelier.infra.tracking.views import MODELS, models_view

PARENT = "mlflow.parentRunId"


class RunWriter:
    """Writes the MLflow runs of one flow run."""

    def __init__(self, backend: Backend, store: Store, about: RunInfo) -> None:
        self.backend, self.store, self.about = backend, store, about
        self.ids = IdCache(store, backend.key)
        # without the host: links work from any address, e.g. through a tunnel
        self.links = Links(urlsplit(backend.page).path)
        self.experiment = self.flow_run = ""
        self._sweep_run = ""
        self._is_again = False

    def begin(self) -> None:
        """Start the flow's run, or reopen it when the same flow run is retried. Raises ConnectionError (to be
        retried) when this is part of a run that is not in MLflow yet.
        """
        about, backend = self.about, self.backend
        self.experiment = backend.experiment(about.flow)
        backend.view(self.experiment, MODELS, models_view())
        found = backend.find_run([self.experiment], {"atelier.run": about.run_id, "atelier.kind": "flow"})
        self._is_again = found is not None
        if about.is_part:
            if found is None:
                raise ConnectionError(f"the flow run {about.run_id} is not in MLflow yet")  # tried again
            self.flow_run = found.info.run_id
            return
        if about.sweep:
            self._sweep_run = self._sweep()
        me = Holder.me()
        tags = about.common() | {
            "atelier.kind": "flow",
            PARENT: self._sweep_run,
            "mlflow.source.name": about.command,
            NOTE: f"`{about.command}`",
            "atelier.holder": json.dumps(vars(me)),
        }
        if found is None:
            self.flow_run = backend.new_run(self.experiment, about.title or about.run_id, tags)
        else:
            self.flow_run = found.info.run_id
            backend.reopen(self.flow_run)
            backend.tag(self.flow_run, tags)
        backend.params(self.flow_run, flat(about.config), found.data.params if found else ())
        self._end_dead_runs()

    def _sweep(self) -> str:
        backend, name = self.backend, self.about.sweep
        tags = {"atelier.sweep": name, "atelier.kind": "sweep"}
        found = backend.find_run([self.experiment], tags)
        mine = found.info.run_id if found else backend.new_run(self.experiment, name, tags)
        run_id = self.agree("sweep", f"{self.experiment}/{name}", mine, is_new=found is None)
        backend.reopen(run_id)
        return run_id

    def agree(self, kind: str, name: str, mine: str, *, is_new: bool) -> str:
        """The one run of the sweep or trajectory `name`, even when several processes propose one at once."""
        backend = self.backend
        run_id = self.ids.agree(kind, name, mine, lambda run_id: backend.run(run_id) is not None)
        if is_new and run_id != mine:
            backend.drop_run(mine)
        return run_id

    def _end_dead_runs(self) -> None:
        """Mark flow runs (and their child runs) killed whose process on this machine has ended."""
        running = [
            r
            for r in self.backend.runs(self.experiment, "attributes.status = 'RUNNING'")
            if r.info.run_id != self.flow_run
        ]
        dead: set[str] = set()
        for run in running:
            holder = run.data.tags.get("atelier.holder")
            if holder and Holder(**json.loads(holder)).is_gone():
                dead.add(run.info.run_id)
        while more := {r.info.run_id for r in running if r.data.tags.get(PARENT) in dead} - dead:
            dead |= more
        for run_id in dead:
            self.backend.end_run(run_id, "KILLED")

    def address(self) -> FlowAddress:
        """Id, experiment and MLflow run of this flow run, and links to other pages about it."""
        links = {
            key.removesuffix(".url").removeprefix("atelier."): url
            for key, url in self.about.tags.items()
            if key.endswith(".url")
        }
        return {
            "id": self.about.run_id,
            "experiment": self.experiment,
            "run": self.flow_run,
            "links": links,
        }

    def tag(self, tags: dict[str, str]) -> None:
        self.about.tags.update(tags)
        self.backend.tag(self.flow_run, tags)

    def begin_task(self, handle: TaskHandle) -> None:
        tags = {"atelier.run": self.about.run_id, "atelier.kind": "task", "atelier.node": handle.name}
        found = self.backend.find_run([self.experiment], tags) if self._is_again else None
        if found is not None:
            handle.run = found.info.run_id
            self.backend.reopen(handle.run)
            return
        tags |= self.about.common() | {"atelier.task": handle.task, PARENT: self.flow_run}
        handle.run = self.backend.new_run(self.experiment, handle.name, tags)

    def end_task(self, handle: TaskHandle, status: str, summary: JsonObject) -> None:
        numbers = {k: float(v) for k, v in flat(summary, "/").items() if is_number(v)}
        texts = {f"atelier.{k}": str(v) for k, v in summary.items() if isinstance(v, str)}
        if numbers:
            now = time.time()
            self.backend.points(
                handle.run, [MetricPoint(key, value, 0, now) for key, value in numbers.items()]
            )
        if texts:
            self.backend.tag(handle.run, texts)
        self.backend.end_run(handle.run, ended(status))

    def report(self, record: Record | None, markdown: str, paths: list[str]) -> None:
        """Show the report on the flow's page: files as artifacts, text with pictures as description."""
        self.backend.files(self.flow_run, paths, "report")
        for path in paths:
            name = Path(path).name
            markdown = markdown.replace(
                f"]({name})", f"]({self.links.file(self.flow_run, f'report/{name}')})"
            )
        tags = {NOTE: f"{markdown}\n\n```\n{self.about.command}\n```"}
        if record is not None:
            tags["atelier.report"] = record.fingerprint
        self.backend.tag(self.flow_run, tags)

    def end(self, status: str) -> None:
        """End the flow's run, and the sweep's when no other run of it is running."""
        if self.about.is_part:
            return
        self.backend.end_run(self.flow_run, ended(status))
        if self._sweep_run:
            query = f"tags.`{PARENT}` = '{self._sweep_run}'"
            states = {run.info.status for run in self.backend.runs(self.experiment, query)}
            if "RUNNING" not in states:
                self.backend.end_run(
                    self._sweep_run,
                    "FAILED" if "FAILED" in states else "KILLED" if "KILLED" in states else "FINISHED",
                )

    # trajectories

    def forget(self, fingerprint: str) -> None:
        """Delete the run of a trajectory, if it exists."""
        _, run_id = self.trajectory_run(fingerprint)
        if run_id:
            self.backend.delete_run(run_id)
        self.ids.drop("trajectory", fingerprint)

    def trajectory_run(self, fingerprint: str) -> tuple[str, str]:
        """(experiment, run) of a trajectory, or ('', '')."""
        ids = self.ids.get("trajectory", fingerprint)
        if ids:
            run = self.backend.run(ids["run"])
            if run is not None:
                return run.info.experiment_id, run.info.run_id
        found = self.backend.find_run(
            self.backend.experiments(), {"atelier.trajectory": fingerprint, "atelier.kind": "trajectory"}
        )
        if found is None:
            return "", ""
        run = (
            self.backend.run(self.agree("trajectory", fingerprint, found.info.run_id, is_new=False)) or found
        )
        self.ids.put("trajectory", fingerprint, run=run.info.run_id, experiment=run.info.experiment_id)
        return run.info.experiment_id, run.info.run_id

    def teacher_data(self, trajectory_record: Record | None, name: str) -> list[TrackedData]:
        """The teacher's trajectory and trunks, or the finished models that teach, as input data sets of the
        student's run.
        """
        more = taught_by(trajectory_record)[1:] if trajectory_record else []
        others = [
            TrackedData(
                one.name, "model", one.fingerprint, "teacher", self.store.address("model", one.fingerprint)
            )
            for one in filter(None, (self.store.find("model", fp) for fp in more))
        ]
        return self._first_teacher(trajectory_record, name) + others

    def _first_teacher(self, trajectory_record: Record | None, name: str) -> list[TrackedData]:
        data, fp = [], trajectory_record.parents.get("teacher", "") if trajectory_record else ""
        if fp and self.store.find("model", fp) is not None:
            return [TrackedData(name or "teacher", "model", fp, "teacher", self.store.address("model", fp))]
        while fp:
            data.append(
                TrackedData(
                    name or "teacher", "trajectory", fp, "teacher", self.store.address("trajectory", fp)
                )
            )
            above = find_trajectory(self.store, fp)
            fp = above.parents.get("trunk", "") if above else ""
        return data

    def training_data(self, parents: Mapping[str, str]) -> list[TrackedData]:
        """Tokens, tokenizer and labels among `parents`, and the corpora behind them."""
        found: dict[str, TrackedData] = {}
        for role, fp in parents.items():
            kind = role.split(".")[0]
            record = self.store.find(kind, fp) if kind in DATA_KINDS else None
            if record is None:
                continue
            context = "tokenizer" if kind == "tokenizer" else "training"
            found[fp] = TrackedData(record.name, kind, fp, context, self.store.address(kind, fp))
            if kind != "tokenizer":
                found |= {
                    data.fingerprint: data
                    for data in self.training_data(record.parents)
                    if data.fingerprint not in found
                }
        return list(found.values())
