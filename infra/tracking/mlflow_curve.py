"""Write the curve of one trajectory segment into MLflow: its run and its metric points. Runs on the tracker's
thread.
"""

from collections.abc import Callable, Sequence

from atelier.engine.io.storage import is_local, join, local_path, names
from atelier.infra.report.lineage import find_trajectory
from atelier.infra.report.listing import differences
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.tracking.about import flat
from atelier.infra.tracking.backend import DIGEST, MetricPoint, TrackedData
from atelier.infra.tracking.curve import Curve, CurveRow
from atelier.infra.tracking.run_writer import PARENT, RunWriter
from atelier.infra.tracking.views import WHOLE

PROFILE = "profile"  # the folder of a trajectory, and of its run's artifacts


class MlflowCurve:
    """The MLflow run of one trajectory. `at_end` is called with it when its training has ended."""

    def __init__(
        self,
        writer: RunWriter,
        curve: Curve,
        task: TaskHandle | None,
        at_end: "Callable[[MlflowCurve], None]",
    ) -> None:
        self.writer, self.curve, self.task, self._at_end = writer, curve, task, at_end
        self.followed, self.segments = curve.followed, curve.segments
        self.experiment = self.run_id = ""
        self.is_open = False
        self._sent: set[tuple[str, int]] | None = None

    @property
    def fingerprint(self) -> str:
        return self.curve.fingerprint

    @property
    def eval_loss(self) -> dict[int, float]:
        """Held-out losses by step."""
        return self.curve.reader.eval_loss

    def add(self, rows: Sequence[CurveRow]) -> None:
        """Log the points that the run does not have."""
        sent = self._sent if self._sent is not None else self._locate()
        new = [point for point in points_of(rows) if (point.key, point.step) not in sent]
        if new:
            self.open()
            self._sent = None  # until it is certain which points arrived
            self.writer.backend.points(self.run_id, new)
            self._sent = sent | {(point.key, point.step) for point in new}

    def _locate(self) -> set[tuple[str, int]]:
        """Find or create the trajectory's run; returns the points that it already has."""
        self.experiment, self.run_id = self.writer.trajectory_run(self.fingerprint)
        if not self.run_id:
            self.create()
        run = self.writer.backend.run(self.run_id)
        if run is not None:  # perhaps created by another flow
            self.experiment = run.info.experiment_id
        self.writer.ids.put("trajectory", self.fingerprint, run=self.run_id, experiment=self.experiment)
        self._sent = self.writer.backend.steps(run) if run else set()
        return self._sent

    def create(self) -> None:
        """Create the trajectory's run, with its training data and teacher."""
        writer, followed = self.writer, self.followed
        trajectory_record = find_trajectory(writer.store, self.fingerprint)
        tags = (
            writer.about.common()
            | self._tags()
            | {
                "atelier.kind": "trajectory",
                "atelier.trajectory": self.fingerprint,
                "atelier.fingerprint": self.fingerprint,
                "atelier.role": followed.role,
                "atelier.teacher": followed.teacher,
                "atelier.teacher_trajectory": trajectory_record.parents.get("teacher", "")
                if trajectory_record
                else "",
                "atelier.trunk": trajectory_record.parents.get("trunk", "") if trajectory_record else "",
                "atelier.task": self.task.task if self.task else "",
                WHOLE: "true" if self.curve.is_whole else "false",
                "atelier.url": self.segments[-1].url,
            }
        )
        self.experiment = writer.experiment
        started = trajectory_record.provenance.get("started") if trajectory_record else None
        name = " ".join([self.curve.name, *differences(writer.about.command, followed.role)])
        mine = writer.backend.new_run(self.experiment, name, tags, started)
        self.run_id = writer.agree("trajectory", self.fingerprint, mine, is_new=True)
        self.is_open = True
        if self.run_id != mine:  # another flow was first, and fills it in
            return
        writer.backend.params(
            self.run_id,
            flat(followed.params) or flat(trajectory_record.identity if trajectory_record else {}),
        )
        data = writer.training_data(
            followed.inputs | (trajectory_record.parents if trajectory_record else {})
        ) + writer.teacher_data(trajectory_record, followed.teacher)
        there = {one.digest for one in data}
        others = {name: fp for name, fp in followed.inputs.items() if fp[:DIGEST] not in there}
        writer.backend.inputs(
            self.run_id,
            data + [TrackedData(name, "artifact", fp, "training", "") for name, fp in others.items()],
        )

    def _tags(self, before: str = "") -> dict[str, str]:
        runs = [*filter(None, before.split(",")), self.writer.about.run_id]
        tags = {
            "atelier.flow_runs": ",".join(dict.fromkeys(runs)),
            "atelier.flow_run": self.writer.about.common()["atelier.flow_run"],
        }
        return tags | (
            {PARENT: self.task.run} if self.task and self.task.run else {PARENT: self.writer.flow_run}
        )

    def open(self) -> None:
        """Set the run's status to running, as part of this flow run."""
        if self.is_open:
            return
        run = self.writer.backend.run(self.run_id)
        self.writer.backend.reopen(self.run_id)
        self.writer.backend.tag(
            self.run_id, self._tags(run.data.tags.get("atelier.flow_runs", "") if run else "")
        )
        self.is_open = True

    def finish(self, status: str, last: CurveRow | None) -> None:
        """End the run if this flow run had it open."""
        if self.is_open:
            if last is not None:
                self.writer.backend.points(self.run_id, points_of([last]))
            self._profiles()
            self.writer.backend.end_run(self.run_id, status)
            self.is_open = False
        self._at_end(self)

    def _profiles(self) -> None:
        """Put the traces of a profiled training (train.profile) on the run's page."""
        url = join(self.segments[-1].url, PROFILE)
        if is_local(url) and names(url):
            there = self.writer.backend.file_names(self.run_id, PROFILE)
            new = [str(local_path(join(url, name))) for name in names(url) if name not in there]
            self.writer.backend.files(self.run_id, new, PROFILE)


def points_of(rows: Sequence[CurveRow]) -> list[MetricPoint]:
    return [MetricPoint(key, value, row.step, row.time) for row in rows for key, value in row.values.items()]
