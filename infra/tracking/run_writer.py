"""Writes runs into MLflow: sweep > flow > task > one run per trajectory. All of it happens on the tracker's
thread.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from atelier.engine.config.metric import effective, time_spent
from atelier.engine.config.record import DATA_KINDS, Record
from atelier.infra.report.lineage import read_birth
from atelier.infra.store.lease import Holder
from atelier.infra.store.store import Store
from atelier.infra.tracking.about import Followed, RunInfo, TaskHandle
from atelier.infra.tracking.backend import DIGEST, NOTE, Backend, IdCache, MetricPoint, TrackedData
from atelier.infra.tracking.curve import SegmentReader, is_kept, points, read_segments
from atelier.infra.tracking.page import WHOLE, Links
from atelier.infra.tracking.process_stats import ProcessStats

PARENT = "mlflow.parentRunId"
STATUS = {
    "FINISHED": "FINISHED",
    "COMPLETED": "FINISHED",
    "REUSED": "FINISHED",
    "KILLED": "KILLED",
    "STOPPED": "KILLED",
    "CANCELLED": "KILLED",
}


class RunWriter:
    """The runs of one flow run."""

    def __init__(self, backend: Backend, store: Store, about: RunInfo) -> None:
        self.backend, self.store, self.about = backend, store, about
        self.ids = IdCache(store, backend.key)
        # without the host: they lead on however a person reached the page, through a tunnel or a password
        self.links = Links(urlsplit(backend.page).path)
        self.experiment = self.flow_run = ""
        self._sweep_run = ""
        self._is_again = False

    def begin(self) -> None:
        """Start the flow's run, or go on with it when the same run is tried again."""
        about, backend = self.about, self.backend
        self.experiment = backend.experiment(about.flow)
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
            self.flow_run = backend.new_run(self.experiment, about.run_id, tags)
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
        """The one run of the sweep or trajectory `name`, however many propose one at the same time."""
        backend = self.backend
        run_id = self.ids.agree(kind, name, mine, lambda run_id: backend.run(run_id) is not None)
        if is_new and run_id != mine:
            backend.drop_run(mine)
        return run_id

    def _end_dead_runs(self) -> None:
        """Mark flow runs (and what runs under them) killed whose process, of this machine, is no more."""
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

    def address(self) -> dict[str, Any]:
        """Where this flow run is found: its id, experiment and MLflow run, and other pages about it."""
        links = {
            key.removesuffix(".url").removeprefix("atelier."): url
            for key, url in self.about.tags.items()
            if key.endswith(".url")
        }
        run = {"id": self.about.run_id, "experiment": self.experiment, "run": self.flow_run}
        return {**run, "links": links}

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

    def end_task(self, handle: TaskHandle, status: str, summary: Mapping[str, Any]) -> None:
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
        """Show the report on the flow's page: its files as artifacts, its text as description with the
        pictures in it.
        """
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
        """End the flow's run; and its sweep's, when no other job of it is running."""
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
        """Delete the run of a trajectory, if there is one."""
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
        """The teacher's trajectory and the trunks under it, as data sets that a student read."""
        data, fp = [], trajectory_record.parents.get("teacher", "") if trajectory_record else ""
        while fp:
            data.append(
                TrackedData(
                    name or "teacher", "trajectory", fp, "teacher", self.store.address("trajectory", fp)
                )
            )
            above = read_birth(self.store, fp)
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


class CurveWriter:
    """The run of one trajectory. It draws the whole way of the role up to there: a branch's curve begins with
    its trunk's.
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
        self._newest: dict[str, Any] = {}
        self._process_stats = process_stats

    @property
    def fingerprint(self) -> str:
        return self.segments[-1].fingerprint

    def poll(self) -> None:
        """Send what was sealed since the last time."""
        if self.run_id or self.reader.has_own():
            self.reader.read()
            self._send()

    def _send(self, last: int | None = None) -> None:
        if self.reader.pending:
            self._newest = max([self._newest, *self.reader.pending], key=lambda line: line.get("step", -1))
            if last is None:
                self._measure()
        lines = [self._newest] if last is not None else self.reader.pending
        if not lines:
            return
        sent = self._sent if self._sent is not None else self._locate()
        new = points(lines, sent, start=self.segments[0].start, now=time.time(), last=last)
        if new:
            self.open()
            self._sent = None  # until it is certain what arrived
            self.writer.backend.points(self.run_id, [MetricPoint(*point) for point in new])
            self._sent = sent | {(key, step) for key, _, step, _ in new}
        if last is None:
            self.reader.pending.clear()

    def _measure(self) -> None:
        """Write what the gang uses just now at the newest step that is drawn."""
        drawn = [line for line in self.reader.pending if is_kept(line["step"] - self.segments[0].start)]
        if drawn and self._process_stats is not None:
            drawn[-1].setdefault("timing", {}).update(self._process_stats.read())

    def _locate(self) -> set[tuple[str, int]]:
        """Find the trajectory's run or make one; what it has already."""
        self.experiment, self.run_id = self.writer.trajectory_run(self.fingerprint)
        if not self.run_id:
            self.create()
        run = self.writer.backend.run(self.run_id)
        if run is not None:  # made just now by another flow, perhaps
            self.experiment = run.info.experiment_id
        self.writer.ids.put("trajectory", self.fingerprint, run=self.run_id, experiment=self.experiment)
        self._sent = self.writer.backend.steps(run) if run else set()
        return self._sent

    def create(self) -> None:
        """Make the trajectory's run, with what it was trained on and whom it learned from."""
        writer, followed = self.writer, self.followed
        trajectory_record = read_birth(writer.store, self.fingerprint)
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
        if self.run_id != mine:  # another flow was first, and describes it
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
        """Make the run a running one of this flow run."""
        if self.is_open:
            return
        run = self.writer.backend.run(self.run_id)
        self.writer.backend.reopen(self.run_id)
        self.writer.backend.tag(
            self.run_id, self._tags(run.data.tags.get("atelier.flow_runs", "") if run else "")
        )
        self.is_open = True

    def _effective(self) -> None:
        """How much of its gangs' time was training, so far."""
        share = effective(time_spent(read_segments(segment.url)) for segment in self.segments)
        if share is not None and self._newest:
            point = MetricPoint("effective_time", share, self._newest["step"], time.time())
            self.writer.backend.points(self.run_id, [point])

    def finish(self, status: str) -> None:
        """Send the rest, the last step whole, and end the run if this flow run had it open."""
        self.poll()
        if self._newest and self.run_id:
            self._send(last=self._newest["step"])
        if self.is_open:
            self._effective()
            self.writer.backend.end_run(self.run_id, ended(status))
            self.is_open = False


def ended(status: str) -> str:
    """FINISHED, FAILED or KILLED: MLflow's word for how something ended."""
    return STATUS.get(status.upper(), "FAILED")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def flat(document: Any, between: str = ".", prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one: {'a': {'b': 1}} -> {'a.b': 1}. Lists stay as they are."""
    result: dict[str, Any] = {}
    for key, value in document.items():
        place = f"{prefix}{between}{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            result |= flat(value, between, place)
        elif value is not None:
            result[place] = value
    return result
