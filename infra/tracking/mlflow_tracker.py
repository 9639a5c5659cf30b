"""Track a flow run in MLflow on a separate thread, so that training continues whatever MLflow does.

Only `close`, `register` and, briefly, the addresses wait for MLflow. Unwritten data stays in the store: the
next run that uses the artifact writes it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from atelier.engine.config.base import JsonObject
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Record
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import RunAbout, run_info
from atelier.infra.tracking.address import without_secret
from atelier.infra.tracking.curve import Curve
from atelier.infra.tracking.own_database import own_files
from atelier.infra.tracking.page import Links
from atelier.infra.tracking.retry_worker import Connected, Job
from atelier.infra.tracking.sink import CLOSE_S, CurveTracker, SinkCurve

if TYPE_CHECKING:
    from atelier.infra.tracking.models import Models
    from atelier.infra.tracking.run_writer import RunWriter

ADDRESS_S = 8.0
REGISTER_S = 60.0


class MlflowTracker(CurveTracker):
    """Writes one flow run to MLflow in the background."""

    claims = False  # MLflow can be asked for its points

    def __init__(self, uri: str, store: Store, **about: Unpack[RunAbout]) -> None:
        """Start the thread and return at once. The `run_id` is Atelier's: the same id continues the same
        MLflow run; with `is_part`, another process begins and ends it. `tags` are set on every run and model;
        a tag `<word>.url` becomes a link <word> on the pages.
        """
        super().__init__(store, run_info(**about))
        self.uri = uri
        self._writer: RunWriter | None = None
        self._models: Models | None = None
        self._handles: list[TaskHandle] = []
        self._begun = self.worker.put("the flow's run", lambda backend: self.writer.begin())

    def connect(self) -> Connected:
        # imported on the thread: MLflow takes 2 s to import, and planning does not need it
        from atelier.infra.tracking.backend import Backend
        from atelier.infra.tracking.models import Models  # as above
        from atelier.infra.tracking.run_writer import RunWriter  # as above

        backend = Backend(self.uri, own_files(self.store))
        self._writer = RunWriter(backend, self.store, self.about)
        self._models = Models(self._writer, self.store)
        return backend

    def curve(self, curve: Curve, task: TaskHandle | None) -> SinkCurve:
        from atelier.infra.tracking.mlflow_curve import MlflowCurve  # as below

        return MlflowCurve(self.writer, curve, task, self.models.checkpoints)

    @property
    def writer(self) -> "RunWriter":
        assert self._writer is not None  # jobs run only after _connect
        return self._writer

    @property
    def models(self) -> "Models":
        assert self._models is not None  # as above
        return self._models

    @property
    def mlflow_run(self) -> str:
        """The id of the flow's MLflow run; '' when MLflow does not answer within a few seconds."""
        self._begun.done.wait(ADDRESS_S)
        return self._writer.flow_run if self._writer else ""

    @property
    def trouble(self) -> str:
        """The reason why writing is delayed; '' = no delay."""
        return self.worker.trouble

    def urls(self) -> dict[str, str]:
        """'flow', 'compare', 'models' -> page on the MLflow server; {} without one or while unreachable."""
        links = Links(without_secret(self.uri).rstrip("/") if self.uri.startswith("http") else "")
        if not links.page or not self.mlflow_run:
            return {}
        return {
            "flow": links.run(self.writer.experiment, self.mlflow_run),
            "compare": links.compare(self.writer.experiment, self.about.run_id),
            "models": links.view(self.writer.experiment),
        }

    def tag(self, tags: Mapping[str, str]) -> None:
        """Add tags to the flow's run and to everything written from now on."""
        self.worker.put("tags", lambda backend: self.writer.tag(dict(tags)))

    def start_task(self, name: str, task: str) -> TaskHandle:
        """Start a task's run under the flow's run. `name` is the node's, unique in the flow run."""
        handle = TaskHandle(name, task)
        self._handles.append(handle)
        self.worker.put(f"task {name}", lambda backend: self.writer.begin_task(handle))
        return handle

    def end_task(self, handle: TaskHandle, status: str, summary: JsonObject | None = None) -> None:
        """End a task's run with FINISHED, FAILED or KILLED (reused counts as finished). Numbers in `summary`
        become metrics, texts become tags.
        """
        values = dict(summary or {})
        self._handles = [one for one in self._handles if one is not handle]
        self.worker.put(
            f"the end of task {handle.name}", lambda backend: self.writer.end_task(handle, status, values)
        )

    def forget(self, trajectory: str) -> None:
        """Delete the run of a trajectory that restarts from step 0. MLflow can restore it."""
        self.worker.put("a training restarts", lambda backend: self.writer.forget(trajectory))

    def record(self, record: Record, task: TaskHandle | None = None) -> None:
        """Record an artifact that was published or reused."""
        self.worker.put(f"{record.kind} {record.name}", lambda backend: self.models.record(record, task))

    def register(self, record: Record, *, name: str = "", aliases: Sequence[str] = ()) -> str:
        """Create a version of the registered model `name` (default: the record's) and wait for it; returns
        its address. Raises AtelierError when it fails or MLflow does not answer in time.
        """
        chosen = name or record.name
        job = self.worker.put(
            f"registering {chosen}", lambda backend: self.models.register(record, chosen, list(aliases))
        )
        return str(self._wait(job, f"{record.name} was not registered"))

    def register_later(self, record: Record, *, name: str, aliases: Sequence[str] = ()) -> None:
        """Like `register`, without waiting, for a model that was registered before, maybe elsewhere."""
        self.worker.put(
            f"registering {name}", lambda backend: self.models.register(record, name, list(aliases))
        )

    def _wait(self, job: Job, what: str) -> str | None:
        job.done.wait(REGISTER_S)
        if job.error or not job.done.is_set():
            why = job.error or self.trouble or f"no answer within {REGISTER_S:.0f} s"
            where = without_secret(self.uri)
            way_out = "after the fix" if self.worker.is_lost else "when MLflow is back"
            raise AtelierError(f"{what}: {why} ({where}); run the same command again {way_out}")
        return job.result

    def report(self, record: Record | None, markdown: str, paths: Sequence[Path | str]) -> None:
        """Show a report on the flow's page: `markdown` as its description, the files as artifacts."""
        files = [str(path) for path in paths]
        self.worker.put("the report", lambda backend: self.models.report(record, markdown, files))

    def close(self, status: str = "FINISHED", timeout_s: float = CLOSE_S) -> list[str]:
        """End the flow's run and write the rest, for `timeout_s` at most; returns what was not written, as
        text.
        """
        self.stop(status)
        for handle in self._handles:
            self.end_task(handle, status)
        self.worker.put("the end of the flow's run", lambda backend: self.writer.end(status))
        return self.finish(timeout_s)
