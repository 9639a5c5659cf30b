"""Markdown of the MLflow pages of models and data, with links between them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from atelier.engine.config.base import Json
from atelier.engine.config.record import DATA_KINDS, Record
from atelier.infra.report.lineage import Index, teacher_label
from atelier.infra.report.table import markdown_rows
from atelier.infra.stack.settings import TRAINING_VIEW as VIEW
from atelier.infra.store.store import Store
from atelier.infra.tracking.views import MODELS, WHOLE

FEW = 6  # names listed in one line
SPACE = "&nbsp;&nbsp;"  # MLflow renders tables without space between columns
NUMBERS = {
    "step": "step",
    "eval_loss": "eval loss (windows)",
    "loss": "training loss",
    "tokens": "tokens",
    "params": "parameters",
    "gate_step": "gate opened at step",
}
MOST = 30  # students on a page: MLflow keeps 8,000 characters of it


@dataclass(frozen=True)
class Links:
    """Addresses of MLflow pages. `page` is the server's URL, only its path, or '' for links relative to
    whatever serves the database.
    """

    page: str

    def run(self, experiment: str, run_id: str) -> str:
        return f"{self.page}/#/experiments/{experiment}/runs/{run_id}{VIEW}"

    def model(self, experiment: str, model_id: str) -> str:
        return f"{self.page}/#/experiments/{experiment}/models/{model_id}{VIEW}"

    def registered(self, name: str, version: str = "") -> str:
        return (
            f"{self.page}/#/models/{quote(name, safe='')}"
            + (f"/versions/{version}" if version else "")
            + VIEW
        )

    def report(self, experiment: str, run_id: str) -> str:
        return f"{self.page}/#/experiments/{experiment}/runs/{run_id}/artifacts/report/report.html{VIEW}"

    def view(self, experiment: str, view: str = MODELS, *, is_chart: bool = False) -> str:
        """The experiment's runs in a saved view (infra/tracking/views.py)."""
        chart = "&compareRunsMode=CHART" if is_chart else ""
        return f"{self.page}/#/experiments/{experiment}/runs{VIEW}&viewStateShareKey={view}{chart}"

    def compare(self, experiment: str, run: str = "", task: str = "") -> str:
        """Charts of the whole curves of the experiment, optionally only of the flow run `run` and one `task`.

        Sorted by name because MLflow shows a list by date as a tree, and draws no curves of collapsed nodes.
        """
        terms = [f"tags.`{WHOLE}` = 'true'"]
        terms += [f"tags.`atelier.flow_runs` LIKE '%{run}%'"] if run else []
        terms += [f"tags.`atelier.task` = '{task}'"] if task else []
        order = f"orderByKey={quote('tags.`mlflow.runName`', safe='')}&orderByAsc=true"
        query = f"searchFilter={quote(' AND '.join(terms), safe='')}"
        return f"{self.page}/#/experiments/{experiment}/runs{VIEW}&compareRunsMode=CHART&{query}&{order}"

    def beside(self, runs: Mapping[str, str]) -> str:
        """MLflow's comparison of runs (run -> experiment): parallel coordinates, parameters, metrics."""
        ids, experiments = (quote(json.dumps(sorted(names))) for names in (runs, set(runs.values())))
        # MLflow reads `runs` only as the first parameter
        return f"{self.page}/#/compare-runs?runs={ids}&experiments={experiments}&{VIEW.removeprefix('?')}"

    def file(self, run_id: str, path: str) -> str:
        return f"{self.page}/get-artifact?path={quote(path, safe='')}&run_uuid={run_id}"


def linked(text: str, url: str) -> str:
    return f"[{text}]({url})" if url else text


def first_line(record: Record, teacher: Record | None, students: Sequence[Record]) -> str:
    """One sentence on a model's origin: its teacher and its students, or its initialization."""
    said = []
    if record.parents.get("teacher"):
        name = teacher.name if teacher else str(record.summary.get("teacher", record.parents["teacher"][:8]))
        said.append(f"student of {name}" + teacher_label(record).removeprefix("teacher"))
    if students:
        names = list(dict.fromkeys(student.name for student in students))
        more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
        said.append(f"teaches {', '.join(names[:FEW])}{more}")
    if not said and "model" in record.parents:
        said.append(f"made from another model by {record.summary.get('rule', 'a conversion')}")
    if not said:
        said.append(
            f"trained from {'another model' if record.parents.get('init') else 'its initial weights'}"
        )
    return "; ".join(said)


def number(value: Json) -> str:
    """A summary's value for people: whole numbers with commas, others with four significant digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.4g}"


def table(rows: Sequence[tuple[str, str]]) -> str:
    """A markdown table of two columns without a header; rows without a value are left out."""
    return markdown_rows(("", ""), [(f"{name}{SPACE}", value) for name, value in rows if value])


def model_page(
    record: Record,
    index: Index,
    pages: dict[str, str],
    extra: Sequence[tuple[str, str]] = (),
    picture: str = "",
    scores: Sequence[tuple[str, str]] = (),
) -> str:
    """Markdown page of a model: a sentence, scores, links, lineage picture, numbers.

    `pages`: fingerprint -> page URL; `extra`: rows with links to runs.
    """
    teacher, students = index.teacher(record), index.students(record)
    rows: list[tuple[str, str]] = list(scores)
    if teacher is not None:
        rows.append((teacher_label(record), linked(teacher.name, pages.get(teacher.fingerprint, ""))))
    others = [one for one in index.teachers(record) if one is not teacher]
    rows += [("teacher", linked(one.name, pages.get(one.fingerprint, ""))) for one in others]
    names = [linked(one.name, pages.get(one.fingerprint, "")) for one in students[-FEW:]]
    rows.append(("students", ", ".join(names) + (" and more, below" if len(students) > FEW else "")))
    if record.parents.get("init") in index.records:
        init = index.records[record.parents["init"]]
        rows.append(("init", linked(init.name, pages.get(init.fingerprint, ""))))
    if record.parents.get("model") in index.records:
        source = index.records[record.parents["model"]]
        rows.append(("made from", linked(source.name, pages.get(source.fingerprint, ""))))
    rows += [
        (role, f"{linked(source.name, pages.get(source.fingerprint, ''))} `{source.fingerprint[:16]}`")
        for role, source in sources(record, index)
    ]
    parts = [first_line(record, teacher, students), table([*rows, *extra])]
    if picture:
        parts.append(f"![lineage of {record.name}]({picture})")
    if students:
        parts.append(students_table(students, pages))
    parts.append(facts(record, index.store))
    return "\n\n".join(parts)


def data_page(
    record: Record,
    store: Store,
    parents: Mapping[str, Record],
    pages: dict[str, str],
    extra: Sequence[tuple[str, str]],
) -> str:
    """Markdown page of a corpus, tokenizer, tokens or labels."""
    rows = [(role, linked(one.name, pages.get(one.fingerprint, ""))) for role, one in parents.items()]
    return "\n\n".join([f"{record.kind} {record.name}", table([*rows, *extra]), facts(record, store)])


def facts(record: Record, store: Store) -> str:
    """An artifact's numbers, its address in the store and the command that made it."""
    keys = NUMBERS if record.kind == "model" else {key: key for key in record.summary}
    rows = [
        (word, number(value))
        for key, word in keys.items()
        if isinstance(value := record.summary.get(key), int | float)
    ]
    commit = record.provenance.get("commit")
    rows.append(("fingerprint", f"`{record.fingerprint}`"))
    rows.append(("stored at", f"`{store.address(record.kind, record.fingerprint)}`"))
    rows.append(("commit", f"`{commit[:12]}`" if commit else ""))
    command = record.provenance.get("command")
    return table(rows) + (f"\n\n```\n{command}\n```" if command else "")


def students_table(students: Sequence[Record], pages: dict[str, str]) -> str:
    """Markdown table of the newest students: when they learned, their last step and held-out loss."""
    rows = []
    for student in students[-MOST:]:
        name = linked(student.name, pages.get(student.fingerprint, ""))
        label = teacher_label(student).removeprefix("teacher @ ")
        step, loss = (
            number(value) if (value := student.summary.get(key)) is not None else ""
            for key in ("step", "eval_loss")
        )
        rows.append((f"{name}{SPACE}", f"{label}{SPACE}", f"{step}{SPACE}", loss))
    if len(students) > MOST:
        rows.append((f"and {len(students) - MOST} earlier ones", "", "", ""))
    head = ("student", "learned at", "step", "eval loss (windows)")
    return f"#### Students\n\n{markdown_rows(head, rows, words=2)}"


def sources(record: Record, index: Index) -> list[tuple[str, Record]]:
    """(role, record) of the data behind an artifact: tokens, tokenizer, labels and the corpora they were made
    from.
    """
    found: dict[str, tuple[str, Record]] = {}
    waiting = [record]
    while waiting:
        current = waiting.pop()
        for role, fp in current.parents.items():
            parent = index.records.get(fp)
            if parent is not None and parent.kind in DATA_KINDS and fp not in found:
                found[fp] = (parent.kind if parent.kind == "corpus" else role, parent)
                waiting.append(parent)
    return sorted(found.values(), key=lambda pair: pair[0])
