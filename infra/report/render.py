"""Render the report of a run: tables, loss curves, samples and lineage as markdown, one HTML file, pictures
and JSON.
"""

import base64
import html
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from atelier.engine.config.curation import WaterfallStep
from atelier.engine.config.metric import CurveLine
from atelier.infra.report.exams import ModelExam, curves_png, exams_png, told
from atelier.infra.report.lineage_graph import Graph
from atelier.infra.report.lineage_svg import to_svg
from atelier.infra.report.table import Table
from atelier.infra.report.waterfall import waterfall_png

if TYPE_CHECKING:
    from rich.console import Group  # late: 50 ms


FILES = ("report.md", "report.html", "exams.png", "waterfall.png", "loss.png", "lineage.svg", "table.json")
ORDER = {
    "teacher": 0, "model": 1, "student": 2, "control": 2, "head": 2,
    "zero-shot": 3, "few-shot": 4, "finetuned": 5, "scratch": 5, "baseline": 6,
}  # fmt: skip


class ReportRow(TypedDict):
    """A row of the tables; intervals are half-widths, differences are to the control or to scratch."""

    name: str
    kind: str
    fingerprint: NotRequired[str]
    params: NotRequired[int | None]
    tokens: NotRequired[int | None]
    bits_per_byte: NotRequired[float]
    loss: NotRequired[float]
    delta: NotRequired[float]
    answer_loss: NotRequired[float]  # of held-out answers, nats a token
    accuracy: NotRequired[float]
    accuracy_interval: NotRequired[float]
    f1: NotRequired[float]
    draws: NotRequired[int]
    accuracy_delta: NotRequired[float]
    accuracy_delta_interval: NotRequired[float]
    head: NotRequired[str]  # kind of the objective
    right: NotRequired[float]  # share of rows
    half: NotRequired[float]
    right_without: NotRequired[float]  # by a rule without a network
    by: NotRequired[str]
    guess: NotRequired[float]


@dataclass(frozen=True)
class ReportContent:
    """Content of a report. `rows` have `name`, `kind` and the numbers that are available."""

    title: str
    command: str
    rows: list[ReportRow]
    # name -> metric lines in step order
    curves: dict[str, list[CurveLine]] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    graph: Graph | None = None
    notes: list[str] = field(default_factory=list)
    more: list[Table] = field(default_factory=list)  # further tables, after those of the rows
    controls: dict[str, str] = field(default_factory=dict)  # control -> its student
    starts: dict[str, int] = field(default_factory=dict)  # student -> the teacher's step at which it began
    waterfall: list[WaterfallStep] = field(default_factory=list)  # of the curated corpora together
    exams: list[ModelExam] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)  # tables too wide for a terminal

    def ordered(self) -> list[ReportRow]:
        """The rows, teachers first, each control after its student."""
        place = {row["name"]: number for number, row in enumerate(self.rows)}

        def key(row: ReportRow) -> tuple[int, int, int]:
            student = self.controls.get(row["name"], row["name"])
            return (
                ORDER.get(row["kind"], len(ORDER)),
                place.get(student, place[row["name"]]),
                int(student != row["name"]),
            )

        return sorted(self.rows, key=key)


def write_report(folder: Path, content: ReportContent) -> list[Path]:
    """Write the files of a report into `folder`; returns their paths. loss.png needs curves, lineage.svg a
    graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, bytes] = {}
    if content.waterfall:
        written["waterfall.png"] = waterfall_png(content.waterfall)
    if of_checkpoints := [each for each in content.exams if each.is_drawn and each.step is not None]:
        written["exams.png"] = curves_png(of_checkpoints)
    elif any(each.is_drawn for each in content.exams):
        written["exams.png"] = exams_png(content.exams)
    if any(content.curves.values()):
        # imported here: matplotlib takes 0.5 s, and tables do not need it
        from atelier.infra.report.loss_plot import loss_png

        written["loss.png"] = loss_png(content.curves, controls=content.controls, starts=content.starts)
    if content.graph is not None:
        written["lineage.svg"] = to_svg(content.graph.brief()).encode()
    document = {
        "title": content.title,
        "command": content.command,
        "rows": content.ordered(),
        "notes": content.notes,
    }
    written["table.json"] = (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
    written["report.md"] = to_markdown(content).encode()
    written["report.html"] = to_html(content, written).encode()
    for name, data in written.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in FILES if name in written]


# tables


ABOUT = ("name", "kind", "parameters", "tokens")  # first columns of every table of models
Field = Literal["bits_per_byte", "answer_loss", "head", "accuracy"]


def _about(row: ReportRow) -> list[str]:
    """The cells of `ABOUT`."""
    return [row["name"], row["kind"], size(row.get("params")), size(row.get("tokens"))]


TABLES: dict[Field, tuple[str, tuple[str, ...], Callable[[ReportRow], list[str]]]] = {
    "bits_per_byte": (
        "Held-out text",
        (*ABOUT, "bits/byte", "loss (documents)", "loss vs control"),
        lambda row: [
            *_about(row),
            digits(row.get("bits_per_byte"), 3),
            digits(row.get("loss"), 3),
            signed(row.get("delta")),
        ],
    ),
    "answer_loss": (
        "Held-out answers",
        (*ABOUT, "loss", "loss vs control"),
        lambda row: [*_about(row), digits(row.get("answer_loss"), 3), signed(row.get("delta"))],
    ),
    "head": (
        "Heads of classes",
        ("name", "head", "right", "without a network", "by", "guessing"),
        lambda row: [
            row["name"],
            row.get("head", ""),
            interval(row.get("right"), row.get("half")),
            digits(row.get("right_without"), 3),
            row.get("by", ""),
            digits(row.get("guess"), 3),
        ],
    ),
    "accuracy": (
        "Accuracy",
        ("name", "kind", "accuracy", "F1 of words", "draws", "vs from scratch"),
        lambda row: [
            row["name"],
            row["kind"],
            interval(row.get("accuracy"), row.get("accuracy_interval")),
            digits(row.get("f1"), 3),
            str(row.get("draws", "")),
            interval(row.get("accuracy_delta"), row.get("accuracy_delta_interval"), plus=True),
        ],
    ),
}


def tables_of(content: ReportContent) -> list[Table]:
    """Tables of language modelling, answers, heads and accuracy, if there are such rows. No row is in two
    tables.
    """
    found = []
    for field_name, (title, head, cells_of) in TABLES.items():
        rows = [row for row in content.ordered() if row.get(field_name) not in (None, "")]
        if rows:
            table = Table(title, head, [cells_of(row) for row in rows], [row["kind"] for row in rows])
            found.append(table.filled())
    return [*found, *content.more]


def size(value: float | None) -> str:
    """12345678 -> 12.3M."""
    if value is None:
        return ""
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:g}"


def digits(value: float | None, count: int) -> str:
    return "" if value is None else f"{value:.{count}f}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def interval(value: float | None, half: float | None, *, plus: bool = False) -> str:
    if value is None:
        return ""
    text = f"{value:+.3f}" if plus else f"{value:.3f}"
    return text + (f" ± {half:.3f}" if half else "")


def terminal_table(content: ReportContent) -> "Group":
    """The tables as a rich renderable."""
    from rich.console import Group  # late: 50 ms

    return Group(*(table.to_rich() for table in tables_of(content)))


# markdown


def to_markdown(content: ReportContent) -> str:
    parts = [f"# {content.title}", f"```\n{content.command}\n```"]
    if content.notes:
        parts.append("\n".join(f"- {note}" for note in content.notes))
    parts += (table.to_markdown() for table in [*tables_of(content), *content.details])
    if any(each.is_drawn for each in content.exams):
        parts.append("![scores with intervals](exams.png)")
    if content.waterfall:
        parts.append("## Corpus\n\n![documents and bytes by reason](waterfall.png)")
    if any(content.curves.values()):
        parts.append("## Loss\n\n![loss curves](loss.png)")
    if content.graph is not None:
        parts.append("## Lineage\n\n![lineage](lineage.svg)")
    if content.samples:
        blocks = [
            f"### {name}\n\n{_fence(text)}\n{text}\n{_fence(text)}" for name, text in content.samples.items()
        ]
        parts.append("\n\n".join(["## Samples", *blocks]))
    return "\n\n".join(parts) + "\n"


def _fence(text: str) -> str:
    """A code fence longer than any in `text`."""
    fence = "```"
    while fence in text:
        fence += "`"
    return fence


# HTML

STYLE = """
:root{color-scheme:light dark;--ink:#1c2126;--soft:#5a656e;--line:#d5dade;--back:#fff;--panel:#f5f7f8;
--good:#00654b;--bad:#a33b00;--accent:#b86b00}
@media (prefers-color-scheme:dark){:root{--ink:#e8ecef;--soft:#a3aeb7;--line:#363f46;--back:#15191c;
--panel:#1d2327;--good:#4fd6ab;--bad:#ff9d6b;--accent:#f0a840}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:66rem;padding:1rem clamp(.8rem,3vw,2rem) 3rem;background:var(--back);
color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:.6rem 0}
h2{font-size:1.15rem;margin:2rem 0 .6rem}
pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem;margin:.5rem 0;
font:13px/1.45 ui-monospace,"SFMono-Regular",Menlo,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
ul.notes{padding:0;list-style:none;display:grid;gap:.5rem}
ul.notes li{border-left:4px solid var(--accent);background:var(--panel);padding:.5rem .8rem;
border-radius:0 8px 8px 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{color:var(--soft);font-weight:500;font-size:.85rem}
th,td{text-align:right;padding:.4rem .7rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;padding-left:0}
th:nth-child(2),td:nth-child(2){text-align:left}
tr.teacher td:first-child,tr.student td:first-child,tr.finetuned td:first-child,
tr.model td:first-child{font-weight:600}
tr.control td,tr.baseline td,tr.scratch td{color:var(--soft)}
tr.control td:first-child,tr.scratch td:first-child{padding-left:1.1rem}
td.good{color:var(--good);font-weight:600}
td.bad{color:var(--bad);font-weight:600}
img{width:100%;min-width:36rem;height:auto;border-radius:8px;background:#fff;display:block}
details{border-bottom:1px solid var(--line);padding:.35rem 0}
summary{cursor:pointer;font-weight:600}
@media (max-width:48rem){th,td{padding:.3rem .45rem;font-size:.85rem}}
"""


META = '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'


def html_page(title: str, command: str, notes: Iterable[str], body: Iterable[str]) -> str:
    """One self-contained HTML file; wide tables and pictures scroll, so that a phone shows the rest at
    reading size.
    """
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    parts = [f"<h1>{html.escape(title)}</h1>", f"<pre>{html.escape(command)}</pre>"]
    parts += [f"<ul class=notes>{listed}</ul>"] if listed else []
    head = f"{META}<title>{html.escape(title)}</title><style>{STYLE}</style>"
    inside = "\n".join([*parts, *body])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{inside}\n</body></html>\n'


def html_picture(title: str, png: bytes, alt: str) -> str:
    data = base64.b64encode(png).decode()
    alt = html.escape(alt, quote=True)
    return f'<h2>{title}</h2><div class=wide><img alt="{alt}" src="data:image/png;base64,{data}"></div>'


def to_html(content: ReportContent, pictures: Mapping[str, bytes]) -> str:
    body = [table.to_html() for table in [*tables_of(content), *content.details]]
    if "exams.png" in pictures:
        alt = ", ".join(
            f"{each.label} on {each.exam['set']}: {told(each, each.main)}" for each in content.exams
        )
        body.append(html_picture("Scores", pictures["exams.png"], alt))
    if "waterfall.png" in pictures:
        alt = ", ".join(f"{step['reason']}: {step['documents']} documents" for step in content.waterfall)
        body.append(html_picture("Corpus", pictures["waterfall.png"], alt))
    if "loss.png" in pictures:
        body.append(html_picture("Loss", pictures["loss.png"], _alt(content)))
    if "lineage.svg" in pictures:
        body.append(f"<h2>Lineage</h2><div class=wide>{pictures['lineage.svg'].decode()}</div>")
    if content.samples:
        body.append("<h2>Samples</h2>")
        for number, (name, text) in enumerate(content.samples.items()):
            state = " open" if number == 0 else ""
            body.append(
                f"<details{state}><summary>{html.escape(name)}</summary><pre>{html.escape(text)}</pre></details>"
            )
    return html_page(content.title, content.command, content.notes, body)


def _alt(content: ReportContent) -> str:
    """Alternative text of the loss plot: the curves and their last held-out losses."""
    ends = [
        f"{name} ends at {looks[-1]:.3f}"
        for name, lines in content.curves.items()
        if (looks := [v for line in lines if (v := line.get("values", {}).get("eval/loss")) is not None])
    ]
    return ", ".join([f"loss of {', '.join(content.curves)}", *ends])
