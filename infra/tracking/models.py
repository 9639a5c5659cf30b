"""Writes artifacts into MLflow: models and kept checkpoints as logged models, scores, edges to corpus and
teacher, pages, versions.
"""

import time
from typing import Any

from engine.spec.error import AtelierError
from engine.spec.record import Record
from engine.storage import join
from infra.lineage import Index, graph_of, read_birth, teacher_label, trajectory_segments, trajectory_start
from infra.lineage_draw import to_svg
from infra.store import Store
from infra.tracking.backend import Backend, Point
from infra.tracking.page import linked, model_page
from infra.tracking.run import Followed, TaskHandle
from infra.tracking.scribe import NOTE, Curve, Scribe, flat, is_number
from infra.trajectory import checkpoint_steps

EXTERNAL = "mlflow.model.isExternal"
FRESH_S = 5.0
FINAL = ("loss", "eval_loss", "tokens")


class Models:
    """The artifacts of one flow run."""

    def __init__(self, scribe: Scribe, store: Store) -> None:
        self.scribe, self.store = scribe, store
        self.backend: Backend = scribe.backend
        self.known = scribe.known
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
        """Write what there is to say of an artifact, once. What MLflow knows already costs one or two
        requests.
        """
        if record.kind == "model":
            self.model(record, task)
        elif record.kind == "scores":
            self.scores(record)
        elif record.kind in ("corpus", "tokenizer", "tokens", "labels"):
            data = self.scribe.training_data({record.kind: record.fingerprint})
            self.backend.inputs(
                self.scribe.flow_run, [d for d in data if d.fingerprint == record.fingerprint]
            )

    # models

    def model(self, record: Record, task: TaskHandle | None = None) -> dict[str, Any]:
        """Make sure that the model is in MLflow with its run, edges and page; where it is there."""
        known = self.known.get("model", record.fingerprint)
        if not known:
            known = self._new_model(record, task)
        mine = record.provenance.get("run") in (None, self.scribe.about.run_id)
        if mine:
            self.backend.output(self.scribe.flow_run, known["model"], int(known["step"]))
        else:
            self.backend.inputs(self.scribe.flow_run, models=[known["model"]])
        return known

    def _new_model(self, record: Record, task: TaskHandle | None) -> dict[str, Any]:
        experiment, run_id = self._run_of(record, task)
        step = int(record.summary.get("step", record.identity.get("step", 0)))
        found = self.backend.find_models(
            [experiment], {"atelier.fingerprint": record.fingerprint, "atelier.kind": "model"}
        )
        birth = read_birth(self.store, record.parents.get("trajectory", ""))
        if found:
            model_id = found[0].model_id
        else:
            kind = str(birth.identity.get("model", {}).get("kind", "model")) if birth else "model"
            params = {"role": self._role(record), "step": step} | flat(birth.identity if birth else {})
            model_id = self.backend.new_model(
                experiment, record.name, run_id=run_id, tags=self.tags(record), params=params, kind=kind
            )
        self.backend.output(run_id, model_id, step)
        self.backend.points(run_id, self._final_points(record, step), model_id)
        facts = {
            "model": model_id,
            "experiment": experiment,
            "run": run_id,
            "step": step,
            "flow": self.scribe.address(),
        }
        self._link_family(record, facts)
        self.known.put("model", record.fingerprint, **facts)
        self.write_pages(record)
        return facts

    def _run_of(self, record: Record, task: TaskHandle | None) -> tuple[str, str]:
        """The run of the model's trajectory, drawn from the store when MLflow has none (a new database under
        an old store).
        """
        trajectory = record.parents.get("trajectory", "")
        if not trajectory:
            return self.scribe.experiment, task.run if task and task.run else self.scribe.flow_run
        experiment, run_id = self.scribe.trajectory_run(trajectory)
        if run_id:
            return experiment, run_id
        segments = trajectory_segments(self.store, trajectory, int(record.summary.get("step", 0)))
        followed = Followed(
            segments=segments, role=self._role(record), teacher=self._teacher(record), name=self._role(record)
        )
        curve = Curve(self.scribe, followed, len(segments) - 1, task)
        curve.poll()
        if not curve.run_id:
            curve.create()
        curve.finish("FINISHED")
        self.checkpoints(curve)
        return curve.experiment, curve.run_id

    def _teacher(self, record: Record) -> str:
        """The teacher's name; '' without one."""
        birth = read_birth(self.store, record.parents["teacher"]) if "teacher" in record.parents else None
        return str(record.summary.get("teacher") or (birth.name if birth else ""))

    def _role(self, record: Record) -> str:
        return str(record.summary.get("role", record.name))

    def tags(self, record: Record) -> dict[str, str]:
        """What artifacts are searched by."""
        steps = record.summary.get("teacher_steps")
        return self.scribe.about.common() | {
            "atelier.kind": record.kind,
            "atelier.fingerprint": record.fingerprint,
            "atelier.role": self._role(record),
            "atelier.trajectory": record.parents.get("trajectory", ""),
            "atelier.teacher": self._teacher(record),
            "atelier.teacher_trajectory": record.parents.get("teacher", ""),
            "atelier.teacher_steps": f"{steps[0]}-{steps[1]}" if steps else "",
            "atelier.url": self.store.address(record.kind, record.fingerprint),
            EXTERNAL: "true",
        }

    def _final_points(self, record: Record, step: int) -> list[Point]:
        # the same at every try, so that a repeated call adds nothing
        when = float(record.provenance.get("ended", 0.0))
        points = [
            Point(f"final/{key}", float(record.summary[key]), step, when)
            for key in FINAL
            if is_number(record.summary.get(key))
        ]
        steps = record.summary.get("teacher_steps")
        if steps:
            points += [
                Point("teacher/first_step", steps[0], step, when),
                Point("teacher/last_step", steps[1], step, when),
            ]
        return points

    def _link_family(self, record: Record, facts: dict[str, Any]) -> None:
        """The teacher's model as input of the student's run, whichever of the two came first."""
        index = self.index(record)
        teacher = index.teacher(record)
        if teacher is not None and (known := self.known.get("model", teacher.fingerprint)):
            self.backend.inputs(facts["run"], models=[known["model"]])
        for student in index.students(record):
            if known := self.known.get("model", student.fingerprint):
                self.backend.inputs(known["run"], models=[facts["model"]])

    # checkpoints

    def checkpoints(self, curve: Curve) -> None:
        """Kept checkpoints of the curve's trajectory as logged models with their step and held-out loss;
        those removed since, gone.
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
            loss = curve.reader.eval_loss.get(step)
            if loss is not None and not (found and found.metrics):  # only what was measured on these weights
                point = Point("checkpoint/eval_loss", loss, step, time.time())
                self.backend.points(curve.run_id, [point], model_id)
        for word, model in there.items():
            if word.isdigit() and int(word) not in kept:
                self.backend.drop_model(model.model_id)

    def _new_checkpoint(self, curve: Curve, step: int, tags: dict[str, str]) -> str:
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
            tags=self.scribe.about.common() | tags | about,
            params={"role": role, "step": step},
            kind="checkpoint",
        )

    # scores

    def scores(self, record: Record) -> None:
        """Numbers of a scores record as `score/<name>` on the model and on its trajectory's run."""
        if self.known.get("scores", record.fingerprint):
            return
        model = self.store.find("model", record.parents.get("model", ""))
        when = float(record.provenance.get("ended", 0.0))
        # floats are scores; whole numbers say how much was scored
        numbers = {key: value for key, value in flat(record.summary, "/").items() if isinstance(value, float)}
        if model is None:  # a baseline that no model stands behind
            named = [Point(f"score/{record.name}/{key}", value, 0, when) for key, value in numbers.items()]
            self.backend.points(self.scribe.flow_run, named)
        else:
            known = self.known.get("model", model.fingerprint) or self.model(model)
            points = [
                Point(f"score/{key}", value, int(known["step"]), when) for key, value in numbers.items()
            ]
            self.backend.points(known["run"], points, known["model"])
        self.known.put("scores", record.fingerprint, done=True)

    # pages and versions

    def pages(self, records: list[Record]) -> dict[str, str]:
        """fingerprint -> URL of the page of each that has one."""
        result = {}
        for record in records:
            known = self.known.get("model", record.fingerprint)
            if "version" in known:
                result[record.fingerprint] = self.scribe.links.registered(known["name"], known["version"])
            elif known:
                result[record.fingerprint] = self.scribe.links.model(known["experiment"], known["model"])
        return result

    def write_pages(self, record: Record) -> None:
        """Write the model's page everywhere it is read, and its teacher's, which lists it now."""
        index = self.index(record)
        teacher = index.teacher(record)
        for one in [record, *([teacher] if teacher else []), *index.students(record)]:
            if known := self.known.get("model", one.fingerprint):
                self._write_page(one, known, index)

    def _write_page(self, record: Record, known: dict[str, Any], index: Index) -> None:
        init = index.records.get(record.parents.get("init", ""))
        relatives = [r for r in (index.teacher(record), init) if r is not None]
        picture = self.scribe.links.file(known["run"], "lineage/lineage.svg") if known.get("picture") else ""
        pages = self.pages(relatives + index.students(record))
        text = model_page(record, index, pages, self._addresses(record, known), picture)
        self.backend.tag_model(known["model"], {NOTE: text})
        self.backend.tag(known["run"], {NOTE: text})
        if known.get("version"):
            self.backend.describe_version(known["name"], known["version"], text)

    def _addresses(self, record: Record, known: dict[str, Any]) -> list[tuple[str, str]]:
        """Links from a model to its curve, the run that made it, its version and other pages."""
        links, experiment = self.scribe.links, known["experiment"]
        flow = known["flow"]
        rows = [
            ("curve", linked(self._role(record), links.run(experiment, known["run"]))),
            ("flow run", linked(flow["id"], links.run(flow["experiment"], flow["run"]))),
            ("model", linked("logged model", links.model(experiment, known["model"]))),
            ("compare", linked("all runs", links.compare(experiment))),
        ]
        if known.get("version"):
            title = f"{known['name']} version {known['version']}"
            rows.append(("registered", linked(title, links.registered(known["name"], known["version"]))))
        birth = read_birth(self.store, record.parents.get("trajectory", ""))
        if birth is not None and "trunk" in birth.parents:
            place, run_id = self.scribe.trajectory_run(birth.parents["trunk"])
            if run_id:
                rows.append(("trunk", linked(f"to step {trajectory_start(birth)}", links.run(place, run_id))))
        return rows + [(word, linked(word, url)) for word, url in flow["links"].items()]

    def register(self, record: Record, chosen: str, aliases: list[str]) -> str:
        """A version of the registered model `chosen` that `mlflow.pyfunc.load_model` loads; its address."""
        if record.kind != "model":
            raise AtelierError(f"{record.kind} {record.name} cannot be registered: only models can")
        known = self.model(record)
        # here: mlflow.pyfunc takes another second, and not every run registers
        from infra.tracking.version import new_version

        name = chosen.replace("/", "-").replace(":", "-")  # what MLflow refuses
        if known.get("name") != name:
            self.backend.picture(known["run"], to_svg(graph_of(self.index(record), record.fingerprint)))
            tags = {key: value for key, value in self.tags(record).items() if key != EXTERNAL and value}
            tags |= {
                "atelier.model": known["model"],
                "atelier.teacher_label": teacher_label(record) if record.parents.get("teacher") else "",
            }
            version = new_version(
                self.backend,
                self.store,
                record,
                name=name,
                model_id=known["model"],
                run_id=known["run"],
                tags=tags,
            )
            self.known.put("model", record.fingerprint, name=name, version=version, picture=True)
            self.write_pages(record)
            known = self.known.get("model", record.fingerprint)
        for alias in aliases:
            if alias.lower() != "latest":  # MLflow's own word for the highest version
                self.backend.alias(name, alias, known["version"])
        return (
            self.scribe.links.registered(name, known["version"])
            if self.scribe.links.page
            else f"models:/{name}/{known['version']}"
        )
