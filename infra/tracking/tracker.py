"""Track a flow run in MLflow on a separate thread: whatever MLflow does, training continues.

Only `close`, `register` and, briefly, the addresses wait for MLflow. What could not be written is still in
the store: the next run that uses the artifact writes it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from atelier.engine.config.base import JsonObject
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import Record
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import Followed, RunInfo
from atelier.infra.tracking.address import without_secret
from atelier.infra.tracking.follower import Curve, curves_of, ending
from atelier.infra.tracking.own_database import own_files
from atelier.infra.tracking.page import Links
from atelier.infra.tracking.retry_worker import Action, Connected, Job, Worker

if TYPE_CHECKING:
    from atelier.infra.tracking.curve_writer import CurveWriter
    from atelier.infra.tracking.models import Models
    from atelier.infra.tracking.run_writer import RunWriter

ADDRESS_S = 8.0
CLOSE_S = 30.0
REGISTER_S = 60.0


class Tracker:
    """Writes one flow run to MLflow in the background."""

    def __init__(
        self,
        uri: str,
        store: Store,
        *,
        flow: str,
        command: str,
        run_id: str,
        config: JsonObject,
        title: str = "",
        sweep: str = "",
        is_part: bool = False,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Start the thread and return at once. `run_id` is Atelier's: the same id continues the same MLflow
        run; with `is_part`, another process begins and ends it.

        `tags` are set on every run and model; a tag `<word>.url` becomes a link <word> on the pages.
        """
        self.uri = uri
        self._store = store
        self._about = RunInfo(
            flow=flow,
            command=command,
            run_id=run_id,
            config=config,
            title=title,
            sweep=sweep,
            is_part=is_part,
            tags=dict(tags or {}),
        )
        self._writer: RunWriter | None = None
        self._models: Models | None = None
        self._handles: list[TaskHandle] = []
        self._followings: list[Following] = []
        self._worker = Worker(self._connect)
        self._begun = self._worker.put("the flow's run", lambda backend: self.writer.begin())

    def _connect(self) -> Connected:
        # imported on the thread: MLflow takes 2 s to import, and planning does not need it
        from atelier.infra.tracking.backend import Backend
        from atelier.infra.tracking.models import Models  # as above
        from atelier.infra.tracking.run_writer import RunWriter  # as above

        backend = Backend(self.uri, own_files(self._store))
        self._writer = RunWriter(backend, self._store, self._about)
        self._models = Models(self._writer, self._store)
        return backend

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
        """Why writing is late just now; '' when it is not."""
        return self._worker.trouble

    @property
    def busy_s(self) -> float:
        """Seconds that the tracker's thread was busy."""
        return self._worker.busy_s

    def urls(self) -> dict[str, str]:
        """'flow', 'compare', 'models' -> page on the MLflow server; {} without one or while unreachable."""
        links = Links(without_secret(self.uri).rstrip("/") if self.uri.startswith("http") else "")
        if not links.page or not self.mlflow_run:
            return {}
        return {
            "flow": links.run(self.writer.experiment, self.mlflow_run),
            "compare": links.compare(self.writer.experiment, self._about.run_id),
            "models": links.view(self.writer.experiment),
        }

    def tag(self, tags: Mapping[str, str]) -> None:
        """Add tags to the flow's run and to everything written from now on."""
        self._worker.put("tags", lambda backend: self.writer.tag(dict(tags)))

    def start_task(self, name: str, task: str) -> TaskHandle:
        """Start a task's run under the flow's run. `name` is the node's, unique in the flow run."""
        handle = TaskHandle(name, task)
        self._handles.append(handle)
        self._worker.put(f"task {name}", lambda backend: self.writer.begin_task(handle))
        return handle

    def end_task(self, handle: TaskHandle, status: str, summary: JsonObject | None = None) -> None:
        """End a task's run with FINISHED, FAILED or KILLED (reused counts as finished). Numbers in `summary`
        become metrics, texts become tags.
        """
        values = dict(summary or {})
        self._handles = [one for one in self._handles if one is not handle]
        self._worker.put(
            f"the end of task {handle.name}", lambda backend: self.writer.end_task(handle, status, values)
        )

    def follow(
        self,
        task: TaskHandle | None,
        trajectories: Sequence[Followed],
        curves: list[list[Curve]] | None = None,
    ) -> "Following":
        """Write the curves of a gang's trainings, every two seconds, until `stop`. `curves`: theirs, where
        other trackers write them as well.
        """
        following = Following(self, task, curves or curves_of(trajectories))
        self._followings.append(following)
        return following

    def forget(self, trajectory: str) -> None:
        """Delete the run of a trajectory that restarts from step 0. MLflow can restore it."""
        self._worker.put("a training begins again", lambda backend: self.writer.forget(trajectory))

    def record(self, record: Record, task: TaskHandle | None = None) -> None:
        """Record an artifact that was published or reused."""
        self._worker.put(f"{record.kind} {record.name}", lambda backend: self.models.record(record, task))

    def register(self, record: Record, *, name: str = "", aliases: Sequence[str] = ()) -> str:
        """Create a version of the registered model `name` (default: the record's) and wait for it; returns
        its address. Raises AtelierError when it fails or MLflow does not answer in time.
        """
        chosen = name or record.name
        job = self._worker.put(
            f"registering {chosen}", lambda backend: self.models.register(record, chosen, list(aliases))
        )
        return str(self._wait(job, f"{record.name} was not registered"))

    def register_later(self, record: Record, *, name: str, aliases: Sequence[str] = ()) -> None:
        """As `register`, without waiting: for a model registered before, perhaps not in this MLflow."""
        self._worker.put(
            f"registering {name}", lambda backend: self.models.register(record, name, list(aliases))
        )

    def _wait(self, job: Job, what: str) -> str | None:
        job.done.wait(REGISTER_S)
        if job.error or not job.done.is_set():
            why = job.error or self.trouble or f"no answer within {REGISTER_S:.0f} s"
            where = without_secret(self.uri)
            way_out = "with that mended" if self._worker.is_lost else "when MLflow is back"
            raise AtelierError(f"{what}: {why} ({where}); run the same command again {way_out}")
        return job.result

    def report(self, record: Record | None, markdown: str, paths: Sequence[Path | str]) -> None:
        """Show a report on the flow's page: `markdown` as its description, the files as artifacts."""
        files = [str(path) for path in paths]
        self._worker.put("the report", lambda backend: self.models.report(record, markdown, files))

    def close(self, status: str = "FINISHED", timeout_s: float = CLOSE_S) -> list[str]:
        """End the flow's run and write the rest, for `timeout_s` at most; returns what was not written, as
        text.
        """
        for following in self._followings:
            following.stop(status)
        for handle in self._handles:
            self.end_task(handle, status)
        self._worker.put("the end of the flow's run", lambda backend: self.writer.end(status))
        return self._worker.close(timeout_s)

    def regularly(self, label: str, action: Action) -> None:
        self._worker.regularly(label, action)

    def no_longer(self, label: str) -> None:
        self._worker.no_longer(label)

    def put(self, label: str, action: Action) -> None:
        self._worker.put(label, action)


class Following:
    """Writes the curves of one gang's trainings."""

    def __init__(self, tracker: Tracker, task: TaskHandle | None, curves: list[list[Curve]]) -> None:
        self._tracker, self._task, self._chains = tracker, task, curves
        self._curves: list[list[CurveWriter]] = []
        self._label = f"curves {id(self)}"
        self._is_stopped = False
        tracker.put("the curves", lambda backend: self._begin())
        tracker.regularly(self._label, lambda backend: self._poll())

    def _begin(self) -> None:
        from atelier.infra.tracking.curve_writer import CurveWriter  # on the thread: it imports MLflow

        if not self._curves:
            self._curves = [
                [CurveWriter(self._tracker.writer, curve, self._task) for curve in chain]
                for chain in self._chains
            ]

    def _poll(self) -> None:
        for chain in self._curves:
            for curve in chain:
                curve.poll()

    def stop(self, status: str = "FINISHED") -> None:
        """After the gang has ended: queue the rest, the kept checkpoints and the ends of the runs."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self._tracker.no_longer(self._label)
        for number, curves in enumerate(self._chains):
            for place, curve in enumerate(curves):
                self._tracker.put(
                    f"the curve of {curve.followed.role}",
                    lambda backend, n=number, p=place: self._finish(n, p, status),
                )

    def _finish(self, number: int, place: int, status: str) -> None:
        """Finish a curve."""
        self._curves[number][place].finish(ending(self._chains[number], place, status))
        self._tracker.models.checkpoints(self._curves[number][place])
