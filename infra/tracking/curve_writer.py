"""Write the curve of one trajectory segment into MLflow: its run and its metric points. Runs on the tracker's
thread.
"""

import time

from atelier.engine.config.metric import CurveLine, effective, time_spent
from atelier.infra.report.lineage import find_trajectory
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.tracking.about import Followed
from atelier.infra.tracking.backend import DIGEST, MetricPoint, TrackedData
from atelier.infra.tracking.curve import SegmentReader, is_kept, points, read_segments
from atelier.infra.tracking.page import WHOLE
from atelier.infra.tracking.process_stats import ProcessStats
from atelier.infra.tracking.run_writer import PARENT, RunWriter, ended, flat


class CurveWriter:
    """The MLflow run of one trajectory. Its curve covers the role's whole training up to there: a branch's
    curve begins with its trunk's.
    """

    def __init__(
        self,
        writer: RunWriter,
        followed: Followed,
        index: int,
        task: TaskHandle | None,
        process_stats: ProcessStats | None = None,
    ) -> None:
        self.writer, self.followed, self.task = writer, followed, task
        self.segments = followed.segments[: index + 1]
        self.reader = SegmentReader(self.segments)
        self.experiment = self.run_id = ""
        self.is_open = False
        self._sent: set[tuple[str, int]] | None = None
        self._newest: CurveLine | None = None
        self._process_stats = process_stats

    @property
    def fingerprint(self) -> str:
        return self.segments[-1].fingerprint

    def poll(self) -> None:
        """Send the metric lines sealed since the last call."""
        if self.run_id or self.reader.has_own():
            self.reader.read()
            self._send()

    def _send(self, last: int | None = None) -> None:
        if self.reader.pending:
            lines = [*([self._newest] if self._newest else []), *self.reader.pending]
            self._newest = max(lines, key=lambda line: line["step"])
            if last is None:
                self._measure()
        lines = self.reader.pending if last is None else [self._newest] if self._newest else []
        if not lines:
            return
        sent = self._sent if self._sent is not None else self._locate()
        new = points(lines, sent, start=self.segments[0].start, now=time.time(), last=last)
        if new:
            self.open()
            self._sent = None  # until it is certain which points arrived
            self.writer.backend.points(self.run_id, [MetricPoint(*point) for point in new])
            self._sent = sent | {(key, step) for key, _, step, _ in new}
        if last is None:
            self.reader.pending.clear()

    def _measure(self) -> None:
        """Add the gang's current process statistics to the newest step that is logged."""
        drawn = [line for line in self.reader.pending if is_kept(line["step"] - self.segments[0].start)]
        if drawn and self._process_stats is not None:
            drawn[-1].setdefault("timing", {}).update(self._process_stats.read())

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
        is_whole = len(self.segments) == len(followed.segments)
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
                WHOLE: "true" if is_whole else "false",
                "atelier.url": self.segments[-1].url,
            }
        )
        name = followed.name or followed.role
        if not is_whole:  # the whole curve, the one to compare, has the plain name
            name = f"{name} trunk to step {self.segments[-1].end}"
        self.experiment = writer.experiment
        started = trajectory_record.provenance.get("started") if trajectory_record else None
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

    def _effective(self) -> None:
        """Log the share of its gangs' time spent training so far."""
        share = effective(time_spent(read_segments(segment.url)) for segment in self.segments)
        if share is not None and self._newest:
            point = MetricPoint("effective_time", share, self._newest["step"], time.time())
            self.writer.backend.points(self.run_id, [point])

    def finish(self, status: str) -> None:
        """Send the rest, the last step in full, and end the run if this flow run had it open."""
        self.poll()
        if self._newest and self.run_id:
            self._send(last=self._newest["step"])
        if self.is_open:
            self._effective()
            self.writer.backend.end_run(self.run_id, ended(status))
            self.is_open = False
