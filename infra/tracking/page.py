"""What a person reads on MLflow's pages: markdown with links from every page to the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from engine.spec.record import Record
from infra.lineage import Index, teacher_label

MODE = "?workflowType=machine_learning"  # MLflow opens in another mode without it
MOST = 30  # students on a page: MLflow keeps 8,000 characters of it


@dataclass(frozen=True)
class Links:
    """Addresses of MLflow pages. `page` is the server, or '' for links relative to whatever serves the
    database.
    """

    page: str

    def run(self, experiment: str, run_id: str) -> str:
        return f"{self.page}/#/experiments/{experiment}/runs/{run_id}{MODE}"

    def model(self, experiment: str, model_id: str) -> str:
        return f"{self.page}/#/experiments/{experiment}/models/{model_id}{MODE}"

    def registered(self, name: str, version: str = "") -> str:
        return (
            f"{self.page}/#/models/{quote(name, safe='')}"
            + (f"/versions/{version}" if version else "")
            + MODE
        )

    def compare(self, experiment: str) -> str:
        return f"{self.page}/#/experiments/{experiment}/runs{MODE}&compareRunsMode=CHART"

    def file(self, run_id: str, path: str) -> str:
        return f"{self.page}/get-artifact?path={quote(path, safe='')}&run_uuid={run_id}"


def linked(text: str, url: str) -> str:
    return f"[{text}]({url})" if url else text


def first_line(record: Record, teacher: Record | None, num_students: int) -> str:
    """One sentence on where a model stands: whose student, whose teacher."""
    if record.parents.get("teacher"):
        name = teacher.name if teacher else str(record.summary.get("teacher", record.parents["teacher"][:8]))
        sentence = f"student of {name}" + teacher_label(record).removeprefix("teacher")
    elif record.parents.get("init"):
        sentence = "trained from another model"
    else:
        sentence = "trained from its initial weights"
    count = f"{num_students} student" + ("s" if num_students != 1 else "")
    return sentence + (f"; teacher of {count}" if num_students else "")


def number(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}"
    return f"{value:.4g}"


def table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows if value)])


def model_page(
    record: Record,
    index: Index,
    pages: dict[str, str],
    extra: Sequence[tuple[str, str]] = (),
    picture: str = "",
) -> str:
    """The page of a model. `pages`: fingerprint -> URL of what has one; `extra`: rows with links to runs."""
    teacher, students = index.teacher(record), index.students(record)
    rows: list[tuple[str, str]] = []
    if teacher is not None:
        rows.append((teacher_label(record), linked(teacher.name, pages.get(teacher.fingerprint, ""))))
    if record.parents.get("init") in index.records:
        init = index.records[record.parents["init"]]
        rows.append(("init", linked(init.name, pages.get(init.fingerprint, ""))))
    for role, source in sources(record, index):
        rows.append((role, f"{source.name} `{source.fingerprint[:16]}`"))
    rows += extra
    for key in ("step", "tokens", "params", "loss", "eval_loss", "gate_step"):
        if key in record.summary:
            rows.append((key, number(record.summary[key])))
    rows.append(("fingerprint", f"`{record.fingerprint}`"))
    rows.append(("stored at", f"`{index.store.address(record.kind, record.fingerprint)}`"))
    rows.append(
        ("commit", f"`{record.provenance['commit'][:12]}`" if record.provenance.get("commit") else "")
    )
    parts = [first_line(record, teacher, len(students)), table(rows)]
    if students:
        parts.append(students_table(students, pages))
    if picture:
        parts.append(f"![lineage]({picture})")
    if record.provenance.get("command"):
        parts.append(f"```\n{record.provenance['command']}\n```")
    return "\n\n".join(parts)


def students_table(students: Sequence[Record], pages: dict[str, str]) -> str:
    lines = ["#### Students", "", "| student | learned at | step | held-out loss |", "|---|---|---|---|"]
    for student in students[-MOST:]:
        name = linked(student.name, pages.get(student.fingerprint, ""))
        label = teacher_label(student).removeprefix("teacher @ ")
        step, loss = (number(student.summary.get(key, "")) for key in ("step", "eval_loss"))
        lines.append(f"| {name} | {label} | {step} | {loss} |")
    if len(students) > MOST:
        lines.append(f"| and {len(students) - MOST} earlier ones | | | |")
    return "\n".join(lines)


def sources(record: Record, index: Index) -> list[tuple[str, Record]]:
    """(role, record) of the data behind an artifact: tokens, tokenizer, labels and the corpora that they were
    made of.
    """
    found: dict[str, tuple[str, Record]] = {}
    waiting = [record]
    while waiting:
        current = waiting.pop()
        for role, fp in current.parents.items():
            parent = index.records.get(fp)
            if (
                parent is not None
                and parent.kind in ("corpus", "tokens", "tokenizer", "labels")
                and fp not in found
            ):
                found[fp] = (parent.kind if parent.kind == "corpus" else role, parent)
                waiting.append(parent)
    return sorted(found.values(), key=lambda pair: pair[0])
