"""A report has the same content in every form, and its page is self-contained."""

import base64
import json
import re
from html.parser import HTMLParser
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from atelier.engine.config.metric import CurveLine
from atelier.infra.report.lineage import lineage
from atelier.infra.report.loss_plot import colours_of, loss_png, smooth
from atelier.infra.report.render import ReportContent, interval, size, terminal_table, write_report
from tests.infra.records import family

ROWS: list[dict[str, Any]] = [
    {
        "name": "teacher",
        "kind": "teacher",
        "params": 9_800_000,
        "tokens": 3_200_000,
        "bits_per_byte": 1.713,
        "loss": 2.61,
    },
    {
        "name": "control_a",
        "kind": "control",
        "params": 3_100_000,
        "tokens": 2_400_000,
        "bits_per_byte": 1.93,
        "loss": 2.901,
    },
    {
        "name": "student_b",
        "kind": "student",
        "params": 1_100_000,
        "bits_per_byte": 1.95,
        "loss": 2.93,
        "delta": 0.011,
    },
    {
        "name": "student_a",
        "kind": "student",
        "params": 3_100_000,
        "bits_per_byte": 1.88,
        "loss": 2.83,
        "delta": -0.071,
    },
    {"name": "gzip -9", "kind": "baseline", "bits_per_byte": 2.4},
    {
        "name": "student_a fine-tuned",
        "kind": "finetuned",
        "accuracy": 0.71,
        "accuracy_interval": 0.03,
        "draws": 5,
        "accuracy_delta": 0.12,
        "accuracy_delta_interval": 0.04,
    },
    {"name": "majority class", "kind": "baseline", "accuracy": 0.2},
]


def curve(start: int, offset: float) -> list[dict[str, Any]]:
    lines = []
    for step in range(start + 1, 101):
        values = {"loss": offset + 3 / (step - start)} | (
            {"eval/loss": offset + 0.1} if step % 20 == 0 else {}
        )
        lines.append({"step": step, "tokens": step * 64, "values": values})
    return lines


def content(tmp_path: Path) -> ReportContent:
    made = family(tmp_path / "store")
    return ReportContent(
        title="distill <1>",
        command="atelier distill roles.student_a.start=0.25",
        rows=ROWS,
        curves={
            "teacher": curve(0, 2.0),
            "student_a": curve(25, 2.2),
            "control_a": curve(25, 2.3),
            "empty": [],
        },
        samples={"teacher": "def f():\n```\n<b>x</b>"},
        graph=lineage(made.shelf.store, "teacher"),
        notes=["student_a is better"],
        controls={"control_a": "student_a"},
        starts={"student_a": 25},
    )


class Reader(HTMLParser):
    """Collects what a page points to and its tags."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_holds_its_pictures_and_points_nowhere(tmp_path: Path) -> None:
    files = {path.name: path for path in write_report(tmp_path / "report", content(tmp_path))}
    assert list(files) == ["report.md", "report.html", "loss.png", "lineage.svg", "table.json"]
    page = files["report.html"].read_text()
    reader = Reader()
    reader.feed(page)
    [source] = reader.sources
    assert source.startswith("data:image/png;base64,")
    assert base64.b64decode(source.split(",")[1]) == files["loss.png"].read_bytes()
    assert "svg" in reader.tags and reader.tags.count("table") == 2 and "script" not in reader.tags
    assert "<b>x</b>" not in page and "distill <1>" not in page
    assert 'name="viewport"' in page and "prefers-color-scheme:dark" in page


def test_the_picture_is_sharp_and_shows_all_roles(tmp_path: Path) -> None:
    files = {path.name: path for path in write_report(tmp_path / "report", content(tmp_path))}
    image = Image.open(BytesIO(files["loss.png"].read_bytes())).convert("RGB")
    assert image.width >= 1200
    colours = {colour for _, colour in image.getcolors(1 << 24) or []}
    assert {(0, 114, 178), (28, 28, 28)} <= colours  # the student's blue and the teacher's black


def test_the_picture_begins_with_what_students_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **more: (drawn.append(self), save(self, *a, **more))
    )

    def curve(*looks: float) -> list[CurveLine]:
        return [{"step": n, "values": {"loss": loss, "eval/loss": loss}} for n, loss in enumerate(looks)]

    curves = {"teacher": curve(4, 3, 2), "student": curve(6, 4, 3), "alone": curve(6, 5, 4.5)}
    loss_png(curves, controls={"alone": "student"})
    gains, losses = drawn[0].axes
    assert "gained" in gains.get_ylabel() and "loss" in losses.get_ylabel()
    assert gains.get_position().y0 > losses.get_position().y0
    assert list(gains.lines[-1].get_ydata()) == [0, 1, 1.5] and gains.lines[-1].get_label() == "student +1.50"


def test_controls_stand_behind_their_students_in_every_form(tmp_path: Path) -> None:
    shown = content(tmp_path)
    names = [row["name"] for row in shown.ordered()]
    assert names[:4] == ["teacher", "student_b", "student_a", "control_a"]
    files = {path.name: path for path in write_report(tmp_path / "report", shown)}
    assert [row["name"] for row in json.loads(files["table.json"].read_text())["rows"]] == names
    in_markdown = re.findall(r"^\| ([^|]+?) \|", files["report.md"].read_text(), re.M)
    console = Console(width=120, file=StringIO(), record=True)
    console.print(terminal_table(shown))
    text = console.export_text()
    first, second = [*names[:4], "gzip -9"], ["student_a fine-tuned", "majority class"]
    assert [name for name in in_markdown if name in names] == first + second
    assert [text.index(f"\n{name} ") for name in first + second] == sorted(
        text.index(f"\n{name} ") for name in first + second
    )
    assert "-0.071" in text and "0.710 ± 0.030" in text and "9.8M" in text


def test_markdown_keeps_a_sample_with_fences_in_one_block(tmp_path: Path) -> None:
    files = {path.name: path for path in write_report(tmp_path / "report", content(tmp_path))}
    markdown = files["report.md"].read_text()
    assert "````\ndef f():\n```\n<b>x</b>\n````" in markdown


def test_a_report_without_curves_and_graph_leaves_the_pictures_out(tmp_path: Path) -> None:
    files = write_report(tmp_path / "report", ReportContent(title="t", command="c", rows=ROWS[:1]))
    assert [path.name for path in files] == ["report.md", "report.html", "table.json"]


def test_a_control_is_drawn_in_its_student_s_colour() -> None:
    colours = colours_of(["teacher", "student_a", "control_a", "student_b"], {"control_a": "student_a"})
    assert (
        colours["control_a"] == colours["student_a"] != colours["student_b"]
        and colours["teacher"] == "#1c1c1c"
    )


def test_numbers_are_written_for_people() -> None:
    assert [size(v) for v in (None, 950, 12_345, 9_800_000, 2_000_000_000)] == [
        "",
        "950",
        "12.3k",
        "9.8M",
        "2B",
    ]
    assert interval(0.5, None) == "0.500" and interval(-0.1, 0.02, plus=True) == "-0.100 ± 0.020"
    assert smooth([1.0, 1.0, 1.0], 10) == [1.0, 1.0, 1.0]


def test_a_gain_within_its_interval_is_not_coloured_and_the_loss_picture_is_told_in_words(
    tmp_path: Path,
) -> None:
    unsure = {"name": "s fine-tuned", "kind": "finetuned", "accuracy": 0.5, "draws": 2}
    rows = [
        unsure | {"accuracy_delta": 0.05, "accuracy_delta_interval": 0.7},
        unsure | {"accuracy_delta": 0.25, "accuracy_delta_interval": 0.1},
    ]
    lines = [{"step": 1, "values": {"loss": 3.0, "eval/loss": 2.5}}]
    files = {
        path.name: path
        for path in write_report(
            tmp_path, ReportContent(title="t", command="c", rows=rows, curves={"s": lines})
        )
    }
    page = files["report.html"].read_text()
    assert "<td>+0.050 ± 0.700</td>" in page and "<td class=good>+0.250 ± 0.100</td>" in page
    assert 'alt="loss of s, s ends at 2.500"' in page
