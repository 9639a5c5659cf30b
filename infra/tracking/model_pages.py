"""Keeps the pages of models and of their data true: written where a person looks, and again when a student,
a version or a report has come.
"""

import hashlib
from typing import Any

from atelier.engine.config.record import Record
from atelier.infra.report.lineage import Index, graph_of, read_birth, trajectory_start
from atelier.infra.report.lineage_svg import to_svg
from atelier.infra.tracking.about import TaskHandle
from atelier.infra.tracking.backend import NOTE, Backend
from atelier.infra.tracking.page import data_page, linked, model_page, sources
from atelier.infra.tracking.run_writer import Scribe

WIDEST = 760  # pixels beside what else stands on MLflow's pages


class Relatives:
    """The pages of one flow run's artifacts and of those around them."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe, self.store, self.known = scribe, scribe.store, scribe.known
        self.backend: Backend = scribe.backend
        self._made: dict[str, dict[str, str]] = {}  # task run -> page of each data artifact that it made

    def write(self, record: Record, index: Index) -> None:
        """Write the model's page everywhere it is read, and those of its teacher and students, which link
        it.
        """
        teacher = index.teacher(record)
        for one in [record, *([teacher] if teacher else []), *index.students(record)]:
            self.write_one(one, index)

    def write_one(self, record: Record, index: Index) -> None:
        """Write the page of a model that MLflow has: on its run, its logged model and its version."""
        known = self.known.get("model", record.fingerprint)
        if not known:
            return
        init = index.records.get(record.parents.get("init", ""))
        relatives = [r for r in (index.teacher(record), init) if r is not None] + index.students(record)
        pages = self._pages(relatives, [data for _, data in sources(record, index)])
        picture = self._picture(record, known, index)
        text = model_page(record, index, pages, self._addresses(record, known), picture)
        self.backend.tag_model(known["model"], {NOTE: text})
        self.backend.tag(known["run"], {NOTE: text})
        if known.get("version"):
            self.backend.describe_version(known["name"], known["version"], text)

    def _picture(self, record: Record, known: dict[str, Any], index: Index) -> str:
        """Draw the model with its ancestors and children into its run, if that changed; the picture's
        address.
        """
        svg = to_svg(graph_of(index, record.fingerprint).near(), widest=WIDEST)
        digest = hashlib.sha256(svg.encode()).hexdigest()[:16]
        if known.get("picture") != digest:
            self.backend.picture(known["run"], svg)
            self.known.put("model", record.fingerprint, picture=digest)
        return self.scribe.links.file(known["run"], "lineage/lineage.svg")

    def data(self, record: Record, task: TaskHandle | None) -> None:
        """Describe a corpus, tokenizer, tokens or labels on the run of the task that made it; when it was
        made before this MLflow store, the flow's run stands for it.
        """
        links, known = self.scribe.links, self.known.get("data", record.fingerprint)
        if not (task and task.run):
            if not known:
                place = {"run": self.scribe.flow_run, "experiment": self.scribe.experiment}
                self.known.put("data", record.fingerprint, **place)
            return
        self.known.put("data", record.fingerprint, run=task.run, experiment=self.scribe.experiment)
        parents = {
            role: found
            for role, fp in record.parents.items()
            if (found := self.store.find(role.split(".")[0], fp)) is not None
        }
        pages = self._pages([], list(parents.values()))
        flow = linked(self.scribe.about.run_id, links.run(self.scribe.experiment, self.scribe.flow_run))
        made = self._made.setdefault(task.run, {})
        made[record.fingerprint] = data_page(record, self.store, parents, pages, [("flow run", flow)])
        self.backend.tag(task.run, {NOTE: "\n\n".join(made.values())})

    def _pages(self, models: list[Record], data: list[Record]) -> dict[str, str]:
        """fingerprint -> URL of the page of each that has one."""
        result = {}
        for record in models:
            known = self.known.get("model", record.fingerprint)
            if "version" in known:
                result[record.fingerprint] = self.scribe.links.registered(known["name"], known["version"])
            elif known:
                result[record.fingerprint] = self.scribe.links.model(known["experiment"], known["model"])
        for record in data:
            if known := self.known.get("data", record.fingerprint):
                result[record.fingerprint] = self.scribe.links.run(known["experiment"], known["run"])
        return result

    def _addresses(self, record: Record, known: dict[str, Any]) -> list[tuple[str, str]]:
        """Links from a model to its run, the flow that made it, its report, its version and other pages."""
        links, experiment, flow = self.scribe.links, known["experiment"], known["flow"]
        task = known.get("task", "")
        rows = [
            (
                "run",
                linked(str(record.summary.get("role", record.name)), links.run(experiment, known["run"])),
            ),
            ("flow run", linked(flow["id"], links.run(flow["experiment"], flow["run"]))),
            *((word, linked(word, url)) for word, url in flow["links"].items()),
        ]
        if report := known.get("report"):
            rows.append(("report", linked(report["name"], links.report(report["experiment"], report["run"]))))
        if known.get("version"):
            title = f"{known['name']} version {known['version']}"
            rows.append(("registered", linked(title, links.registered(known["name"], known["version"]))))
        rows.append(("logged model", linked(record.name, links.model(experiment, known["model"]))))
        rows.append(("compare", linked("curves of this run", links.compare(experiment, flow["id"], task))))
        birth = read_birth(self.store, record.parents.get("trajectory", ""))
        if birth is not None and "trunk" in birth.parents:
            place, run_id = self.scribe.trajectory_run(birth.parents["trunk"])
            if run_id:
                rows.append(("trunk", linked(f"to step {trajectory_start(birth)}", links.run(place, run_id))))
        return rows
