"""Write artifacts into MLflow: models and kept checkpoints as logged models, scores, links to data and
teachers, registered versions.
"""

import time
from typing import cast

from atelier.engine.config.base import Json, JsonObject
from atelier.engine.config.direction import RECORDED
from atelier.engine.config.document import section_of, whole_of
from atelier.engine.config.error import AtelierError
from atelier.engine.config.record import DATA_KINDS, Record
from atelier.engine.io.storage import join
from atelier.infra.report.lineage import Index, find_trajectory, step_of, teacher_label, trajectory_segments
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.existing_model import spec_of
from atelier.infra.store.store import Store
from atelier.infra.store.trajectory import checkpoint_steps
from atelier.infra.tracking.about import Followed, flat, is_number
from atelier.infra.tracking.backend import NOTE, Backend, MetricPoint, TrackedData
from atelier.infra.tracking.curve import Curve
from atelier.infra.tracking.known_ids import Fact, KnownIds
from atelier.infra.tracking.mlflow_curve import MlflowCurve
from atelier.infra.tracking.model_pages import ModelPages
from atelier.infra.tracking.page import Links
from atelier.infra.tracking.run_writer import RunWriter

EXTERNAL = "mlflow.model.isExternal"
FRESH_S = 5.0
COMPUTED = "atelier.computed"  # the training precision: bf16, fp32 ...
SCORES = {  # column of a report's table -> metric
    "loss": "loss",
    "bits_per_byte": "bits_per_byte",
    "delta": "loss_vs_control",
    "accuracy": "accuracy",
}
FINAL = {curve: word for word, curve in RECORDED.items()} | {"tokens": "tokens"}  # metric -> key of a summary


class Models:
    """The artifacts of one flow run."""

    def __init__(self, writer: RunWriter, store: Store) -> None:
        self.writer, self.store = writer, store
        self.backend: Backend = writer.backend
        self.ids = writer.ids
        self.model_pages = ModelPages(writer)
        self._index: Index | None = None
        self._index_age = 0.0

    def index(self, record: Record | None = None) -> Index:
        """All records of the store, read again when older than a few seconds or without `record`."""
        lacks = record is not None and (self._index is None or record.fingerprint not in self._index.records)
        if self._index is None or lacks or time.monotonic() > self._index_age:
            began = time.monotonic()
            self._index = Index(self.store)
            took = time.monotonic() - began
            self._index_age = time.monotonic() + max(FRESH_S, 20 * took)
        return self._index

    def record(self, record: Record, task: TaskHandle | None = None) -> None:
        """Write an artifact to MLflow, once. An existing one costs one or two requests."""
        if record.kind == "model":
            self.model(record, task)
        elif record.kind in ("scores", "exam"):
            self.scores(record)
        elif record.kind in DATA_KINDS:
            self.model_pages.data(record, task)
            data = self.writer.training_data({record.kind: record.fingerprint})
            self.backend.inputs(
                self.writer.flow_run, [d for d in data if d.fingerprint == record.fingerprint]
            )

    # models

    def model(self, record: Record, task: TaskHandle | None = None) -> KnownIds:
        """Ensure that the model is in MLflow with its run, links and page; returns its ids there."""
        ids = self.ids.get("model", record.fingerprint)
        if not ids:
            ids = self._new_model(record, task)
        mine = record.provenance.get("run") in (None, self.writer.about.run_id)
        if mine:
            self.backend.output(self.writer.flow_run, ids["model"], ids["step"])
        else:
            self.backend.inputs(self.writer.flow_run, models=[ids["model"]])
        return ids

    def _new_model(self, record: Record, task: TaskHandle | None) -> KnownIds:
        experiment, run_id = self._run_of(record, task)
        step = step_of(record) or 0
        found = self.backend.find_models(
            [experiment], {"atelier.fingerprint": record.fingerprint, "atelier.kind": "model"}
        )
        trajectory_record = find_trajectory(self.store, record.parents.get("trajectory", ""))
        if found:
            model_id = found[0].model_id
        else:
            identity = trajectory_record.identity if trajectory_record else {}
            kind = str(section_of(identity.get("model")).get("kind", "model"))
            params = {"role": self._role(record), "step": step, **flat(identity)}
            model_id = self.backend.new_model(
                experiment, record.name, run_id=run_id, tags=self.tags(record), params=params, kind=kind
            )
        if tags := {key: text for key, text in self.tags(record).items() if key == COMPUTED and text}:
            self.backend.tag(run_id, tags)  # not known when its run was created
        self.backend.output(run_id, model_id, step)
        self.backend.points(run_id, self._final_points(record, run_id, step), model_id)
        facts: KnownIds = {
            "model": model_id,
            "experiment": experiment,
            "run": run_id,
            "step": step,
            "task": task.task if task else "",
            "flow": self.writer.address(),
        }
        self._link_family(record, facts)
        self.ids.put("model", record.fingerprint, **cast(dict[str, Fact], facts))
        self.model_pages.write(record, self.index(record))
        return facts

    def _run_of(self, record: Record, task: TaskHandle | None) -> tuple[str, str]:
        """(experiment, run) of the model's trajectory, written from the store when MLflow has none (a new
        database for an old store).
        """
        trajectory = record.parents.get("trajectory", "")
        if not trajectory:
            return self.writer.experiment, task.run if task and task.run else self.writer.flow_run
        experiment, run_id = self.writer.trajectory_run(trajectory)
        if run_id:
            return experiment, run_id
        segments = trajectory_segments(self.store, trajectory, record.summary.get("step", 0))
        followed = Followed(
            segments=segments, role=self._role(record), teacher=self._teacher(record), name=self._role(record)
        )
        curve = Curve(followed, len(segments) - 1)
        there = MlflowCurve(self.writer, curve, task, self.checkpoints)
        there.create()
        curve.finish(is_wanted=True)
        there.add(curve.rows)
        there.finish("FINISHED", curve.effective)
        return there.experiment, there.run_id

    def _teacher(self, record: Record) -> str:
        """The teacher's name; '' without one."""
        trajectory_record = (
            find_trajectory(self.store, record.parents["teacher"]) if "teacher" in record.parents else None
        )
        return str(record.summary.get("teacher") or (trajectory_record.name if trajectory_record else ""))

    def _role(self, record: Record) -> str:
        return str(record.summary.get("role", record.name))

    def tags(self, record: Record) -> dict[str, str]:
        """Tags for searching artifacts."""
        steps = record.summary.get("teacher_steps")
        return self.writer.about.common() | {
            "atelier.kind": record.kind,
            "atelier.fingerprint": record.fingerprint,
            "atelier.role": self._role(record),
            "atelier.trajectory": record.parents.get("trajectory", ""),
            "atelier.teacher": self._teacher(record),
            "atelier.teacher_trajectory": record.parents.get("teacher", ""),
            "atelier.teacher_steps": f"{steps[0]}-{steps[1]}" if steps else "",
            COMPUTED: str(record.summary.get("computed") or ""),
            "atelier.url": self.store.address(record.kind, record.fingerprint),
            EXTERNAL: "true",
        }

    def _final_points(self, record: Record, run_id: str, step: int) -> list[MetricPoint]:
        """The model's final metrics, named as its curve's: the curve's own points where it has them."""
        # the same time at every try, so that a repeated call adds no points
        when = record.provenance.get("ended", 0.0)
        points = self.backend.points_at(run_id, FINAL, step)
        there = {point.key for point in points}
        found = {key: cast(Json, record.summary.get(word)) for key, word in FINAL.items() if key not in there}
        points += [
            MetricPoint(key, float(value), step, when) for key, value in found.items() if is_number(value)
        ]
        steps = record.summary.get("teacher_steps")
        if steps:
            points += [
                MetricPoint("teacher/first_step", steps[0], step, when),
                MetricPoint("teacher/last_step", steps[1], step, when),
            ]
        return points

    def _link_family(self, record: Record, facts: KnownIds) -> None:
        """Log the teachers' models as input of the student's run, in whichever order they were written."""
        index = self.index(record)
        for teacher in index.teachers(record):
            if ids := self.ids.get("model", teacher.fingerprint):
                self.backend.inputs(facts["run"], models=[ids["model"]])
        for student in index.students(record):
            if ids := self.ids.get("model", student.fingerprint):
                self.backend.inputs(ids["run"], models=[facts["model"]])

    # checkpoints

    def checkpoints(self, curve: MlflowCurve) -> None:
        """Log the kept checkpoints of the curve's trajectory as models with step and held-out loss; delete
        those of removed checkpoints.
        """
        if not curve.run_id:
            return
        kept = checkpoint_steps(curve.segments[-1].url)
        tags = {"atelier.kind": "checkpoint", "atelier.trajectory": curve.fingerprint}
        there = {
            m.tags.get("atelier.step", ""): m for m in self.backend.find_models([curve.experiment], tags)
        }
        for step in kept:
            found = there.get(str(step))
            model_id = found.model_id if found else self._new_checkpoint(curve, step, tags)
            self.backend.output(curve.run_id, model_id, step)
            if step in curve.eval_loss and not (found and found.metrics):
                # only metrics measured on these weights
                looks = self.backend.points_at(curve.run_id, ["eval/loss"], step)
                self.backend.points(curve.run_id, looks, model_id)
        for word, model in there.items():
            if word.isdigit() and int(word) not in kept:
                self.backend.drop_model(model.model_id)

    def _new_checkpoint(self, curve: MlflowCurve, step: int, tags: dict[str, str]) -> str:
        role = curve.followed.role
        url = join(curve.segments[-1].url, "checkpoints", f"step-{step:08d}")
        about = {
            "atelier.step": str(step),
            "atelier.role": role,
            "atelier.url": url,
            "atelier.teacher": curve.followed.teacher,
            EXTERNAL: "true",
            NOTE: f"`{url}`",
        }
        return self.backend.new_model(
            curve.experiment,
            f"{role}-step-{step}",
            run_id=curve.run_id,
            tags=self.writer.about.common() | tags | about,
            params={"role": role, "step": step},
            kind="checkpoint",
        )

    # scores

    def scores(self, record: Record) -> None:
        """Log the numbers of a scores record as `score/<name>` on the model and its trajectory's run; on
        other examples than it was tuned on as `score/<examples>/<name>`; of an exam as `exam/<set>/<name>`;
        of a checkpoint's exam on the trajectory's run, at the checkpoint's step.
        """
        if self.ids.get("scores", record.fingerprint):
            return
        model = self.store.find("model", record.parents.get("model", ""))
        when = record.provenance.get("ended", 0.0)
        # floats are scores; integers are counts of what was scored
        summary = cast(dict[str, Json], record.summary)
        numbers = {key: value for key, value in flat(summary, "/").items() if isinstance(value, float)}
        if model is None and (trajectory := record.parents.get("trajectory")):
            run_id = self._curve_of(trajectory)
            if not run_id:
                return  # a later run that uses the exam writes it
            place, step = self._place(record), whole_of(record.identity.get("step"))
            points = [MetricPoint(f"{place}/{key}", value, step, when) for key, value in numbers.items()]
            self.backend.points(run_id, points)
        elif model is None:  # a baseline without a model
            named = [
                MetricPoint(f"score/{record.name}/{key}", value, 0, when) for key, value in numbers.items()
            ]
            self.backend.points(self.writer.flow_run, named)
        else:
            ids = self.ids.get("model", model.fingerprint) or self.model(model)
            place = self._place(record)
            points = [
                MetricPoint(f"{place}/{key}", value, ids["step"], when) for key, value in numbers.items()
            ]
            self.backend.points(ids["run"], points, ids["model"], self._scored_on(record))
        self.ids.put("scores", record.fingerprint, done=True)

    def _place(self, record: Record) -> str:
        """The first parts of its metrics' names."""
        asked = self.store.find("evaluation", record.parents.get("set", ""))
        if asked is not None:
            return f"exam/{asked.name}"
        labels = self.store.find("labels", record.parents.get("labels", ""))
        return f"score/{labels.name}" if labels is not None and "tuned" in labels.parents else "score"

    def _curve_of(self, trajectory: str) -> str:
        """The run of a trajectory; '' while its training has not written one. Of a finished model the store
        has all that the run needs.
        """
        _, run_id = self.writer.trajectory_run(trajectory)
        models = [] if run_id else self.index().models(trajectory)
        return self.model(models[0])["run"] if models else run_id

    def _scored_on(self, record: Record) -> TrackedData | None:
        """The tokens or labels on which a model was scored, when the store has them."""
        return next(iter(self.writer.training_data(record.parents)), None)

    # reports and versions

    def report(self, record: Record | None, markdown: str, paths: list[str]) -> None:
        """Show the report on the flow's page and link it from the pages of its models."""
        self.writer.report(record, markdown, paths)
        if record is None:
            return
        place = {"run": self.writer.flow_run, "experiment": self.writer.experiment}
        rows = self._report_rows(record)
        controls = section_of(record.identity.get("controls"))
        for role, fingerprint in record.parents.items():
            model = self.store.find("model", fingerprint) if role.startswith("model.") else None
            if model is None or not (ids := self.ids.get("model", fingerprint)):
                continue
            numbers = rows.get(fingerprint, {})
            when = record.provenance.get("ended", 0.0)
            self.backend.points(
                self.writer.flow_run,
                [MetricPoint(f"{model.name}/{key}", value, 0, when) for key, value in numbers.items()],
            )
            against = numbers.get("loss_vs_control")
            if against is not None:
                point = MetricPoint("score/loss_vs_control", against, ids["step"], when)
                self.backend.points(ids["run"], [point], ids["model"])
            control = record.parents.get(f"model.{controls.get(role.removeprefix('model.'), '')}", "")
            self.ids.put(
                "model",
                fingerprint,
                report={"name": record.name, **place},
                scores=cast(JsonObject, numbers),
                control=control,
            )
            self.model_pages.write_one(model, self.index(model))

    def _report_rows(self, record: Record) -> dict[str, dict[str, float]]:
        """The numbers of a report's table by the model's fingerprint, named as metrics."""
        found: dict[str, dict[str, float]] = {}
        table = record.summary.get("table")
        for row in table if isinstance(table, list) else ():
            cells = section_of(row)
            numbers = {
                word: float(value)
                for key, word in SCORES.items()
                if is_number(value := cells.get(key)) and cells.get("fingerprint")
            }
            found.setdefault(str(cells.get("fingerprint", "")), {}).update(numbers)
        return found

    def register(self, record: Record, chosen: str, aliases: list[str]) -> str:
        """Create a version of the registered model `chosen`, loadable with `mlflow.pyfunc.load_model`.
        Returns its address. Raises AtelierError for a record that is not a model, or that the present engine
        code, which is registered with it, cannot compute.
        """
        if record.kind != "model":
            raise AtelierError(f"{record.kind} {record.name} cannot be registered: only models can")
        spec_of(record, self.store, f"registering {chosen}", record.name)
        ids = self.model(record)
        # imported here: mlflow.pyfunc takes another second, and not every run registers
        from atelier.infra.tracking.registered_version import new_version

        name = chosen.replace("/", "-").replace(":", "-")  # characters that MLflow refuses
        if ids.get("name") != name:
            tags = {key: value for key, value in self.tags(record).items() if key != EXTERNAL and value}
            tags |= {
                "atelier.model": ids["model"],
                "atelier.teacher_label": teacher_label(record) if record.parents.get("teacher") else "",
            }
            version = new_version(
                self.backend,
                self.store,
                record,
                name=name,
                model_id=ids["model"],
                run_id=ids["run"],
                tags=tags,
            )
            self.ids.put("model", record.fingerprint, name=name, version=version)
            self.model_pages.write(record, self.index(record))
        else:
            version = ids.get("version", "")
        for alias in aliases:
            if alias.lower() != "latest":  # reserved by MLflow for the highest version
                self.backend.alias(name, alias, version)
        page = self.backend.page
        return Links(page).registered(name, version) if page else f"models:/{name}/{version}"
