"""Write the MLflow pages of models and of their data, and update them when a student, version or report is
added.
"""

import hashlib

from atelier.engine.config.record import Record
from atelier.infra.report.lineage import Index, find_trajectory, graph_of
from atelier.infra.report.lineage_svg import to_svg
from atelier.infra.run.run_tracker import TaskHandle
from atelier.infra.store.trajectory import trajectory_start
from atelier.infra.tracking.backend import NOTE, Backend
from atelier.infra.tracking.known_ids import KnownIds
from atelier.infra.tracking.page import data_page, linked, model_page, number, sources
from atelier.infra.tracking.run_writer import RunWriter

SCORE_WORDS = {"bits_per_byte": "bits/byte", "loss": "loss (documents)", "accuracy": "accuracy"}
WIDEST = 760  # pixels available in MLflow's page layout


class ModelPages:
    """Pages of one flow run's artifacts and of their teachers and students."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer, self.store, self.ids = writer, writer.store, writer.ids
        self.backend: Backend = writer.backend
        self._made: dict[str, dict[str, str]] = {}  # task run -> page of each data artifact that it made

    def write(self, record: Record, index: Index) -> None:
        """Write the model's page, and those of its teacher and students, which link to it."""
        for one in [record, *index.teachers(record), *index.students(record)]:
            self.write_one(one, index)

    def write_one(self, record: Record, index: Index) -> None:
        """Write the page of a model that MLflow has: on its run, its logged model and its version."""
        ids = self.ids.get("model", record.fingerprint)
        if not ids:
            return
        init = index.records.get(record.parents.get("init", ""))
        model_pages = [*index.teachers(record), *([init] if init else []), *index.students(record)]
        pages = self._pages(model_pages, [data for _, data in sources(record, index)])
        picture = self._picture(record, ids, index)
        text = model_page(
            record, index, pages, self._addresses(record, ids), picture, self._scores(ids, index)
        )
        self.backend.tag_model(ids["model"], {NOTE: text})
        self.backend.tag(ids["run"], {NOTE: text})
        if version := ids.get("version"):
            self.backend.describe_version(ids.get("name", ""), version, text)

    def _scores(self, ids: KnownIds, index: Index) -> list[tuple[str, str]]:
        """Rows of a model's scores, with its control."""
        scores = ids.get("scores", {})
        rows = [(word, number(scores[key])) for key, word in SCORE_WORDS.items() if key in scores]
        control = index.records.get(ids.get("control", ""))
        if control is not None and "loss_vs_control" in scores:
            name = linked(control.name, self._pages([control], []).get(control.fingerprint, ""))
            rows.append(("loss vs control", f"{scores['loss_vs_control']:+.3f} beside {name}"))
        return rows

    def _picture(self, record: Record, ids: KnownIds, index: Index) -> str:
        """Log the model's lineage picture to its run, if it changed; returns the picture's address."""
        svg = to_svg(graph_of(index, record.fingerprint).near(), widest=WIDEST)
        digest = hashlib.sha256(svg.encode()).hexdigest()[:16]
        if ids.get("picture") != digest:
            self.backend.picture(ids["run"], svg)
            self.ids.put("model", record.fingerprint, picture=digest)
        return self.writer.links.file(ids["run"], "lineage/lineage.svg")

    def data(self, record: Record, task: TaskHandle | None) -> None:
        """Write the page of a corpus, tokenizer, tokens or labels to the run of the task that made it;
        without such a run only note the flow's run as its page.
        """
        links, ids = self.writer.links, self.ids.get("data", record.fingerprint)
        if not (task and task.run):
            if not ids:
                writer = self.writer
                self.ids.put("data", record.fingerprint, run=writer.flow_run, experiment=writer.experiment)
            return
        self.ids.put("data", record.fingerprint, run=task.run, experiment=self.writer.experiment)
        parents = {
            role: found
            for role, fp in record.parents.items()
            if (found := self.store.find(role.split(".")[0], fp)) is not None
        }
        pages = self._pages([], list(parents.values()))
        flow = linked(self.writer.about.run_id, links.run(self.writer.experiment, self.writer.flow_run))
        made = self._made.setdefault(task.run, {})
        made[record.fingerprint] = data_page(record, self.store, parents, pages, [("flow run", flow)])
        self.backend.tag(task.run, {NOTE: "\n\n".join(made.values())})

    def _pages(self, models: list[Record], data: list[Record]) -> dict[str, str]:
        """fingerprint -> page URL, for the records that have a page."""
        result = {}
        for record in models:
            ids = self.ids.get("model", record.fingerprint)
            if ids and "version" in ids:
                name, version = ids.get("name", ""), ids["version"]
                result[record.fingerprint] = self.writer.links.registered(name, version)
            elif ids:
                result[record.fingerprint] = self.writer.links.model(ids["experiment"], ids["model"])
        for record in data:
            if ids := self.ids.get("data", record.fingerprint):
                result[record.fingerprint] = self.writer.links.run(ids["experiment"], ids["run"])
        return result

    def _addresses(self, record: Record, ids: KnownIds) -> list[tuple[str, str]]:
        """Links from a model to its run, the flow that made it, its report, its version and other pages."""
        links, experiment, flow = self.writer.links, ids["experiment"], ids["flow"]
        task, name = ids.get("task", ""), ids.get("name", "")
        rows = [
            (
                "run",
                linked(str(record.summary.get("role", record.name)), links.run(experiment, ids["run"])),
            ),
            ("flow run", linked(flow["id"], links.run(flow["experiment"], flow["run"]))),
            *((word, linked(word, url)) for word, url in flow["links"].items()),
        ]
        if report := ids.get("report"):
            rows.append(("report", linked(report["name"], links.report(report["experiment"], report["run"]))))
        if version := ids.get("version"):
            title = f"{name} version {version}"
            rows.append(("registered", linked(title, links.registered(name, version))))
        rows.append(("logged model", linked(record.name, links.model(experiment, ids["model"]))))
        rows.append(("compare", linked("curves of this run", links.compare(experiment, flow["id"], task))))
        trajectory_record = find_trajectory(self.store, record.parents.get("trajectory", ""))
        if trajectory_record is not None and "trunk" in trajectory_record.parents:
            place, run_id = self.writer.trajectory_run(trajectory_record.parents["trunk"])
            if run_id:
                rows.append(
                    (
                        "trunk",
                        linked(f"to step {trajectory_start(trajectory_record)}", links.run(place, run_id)),
                    )
                )
        return rows
