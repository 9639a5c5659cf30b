"""A table of a report or page, rendered with rich, as markdown or as HTML."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atelier.engine.config.direction import SCORED, is_higher_better

if TYPE_CHECKING:
    from rich.table import Table as RichTable

COMPARED = {"loss vs control": "loss", "vs from scratch": "accuracy"}  # heads, and the metric that differs
STYLES = {
    "teacher": "bold", "student": "bold green", "finetuned": "bold green",
    "control": "dim", "scratch": "dim", "baseline": "dim",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Cells as text; the first columns are words, the others numbers. `kinds`: style of each row."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    kinds: Sequence[str]

    def filled(self) -> "Table":
        """The table without columns that are empty in all rows."""
        kept = [i for i in range(len(self.head)) if i == 0 or any(row[i] for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table(self.title, [self.head[i] for i in kept], rows, self.kinds)

    def to_rich(self) -> "RichTable":
        from rich.table import Table as RichTable  # late: 50 ms

        grid = RichTable(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
            header_style="dim",
        )
        for number, name in enumerate(self.head):
            grid.add_column(name, justify="left" if number < 2 else "right", no_wrap=number == 0)
        for row, kind in zip(self.rows, self.kinds, strict=True):
            grid.add_row(*row, style=STYLES.get(kind, ""))
        return grid

    def to_markdown(self) -> str:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        return f"## {self.title}\n\n{markdown_rows(self.head, rows, words=2)}"

    def to_html(self) -> str:
        rows = []
        for row, kind in zip(self.rows, self.kinds, strict=True):
            cells = "".join(_cell(name, text) for name, text in zip(self.head, row, strict=True))
            rows.append(f"<tr class={html.escape(kind)}>{cells}</tr>")
        grid = html_rows(map(html.escape, self.head), rows)
        return f"<h2>{html.escape(self.title)}</h2><div class=wide>{grid}</div>"


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]], words: int | None = None) -> str:
    """A markdown table from markdown cells; columns after the first `words` are right-aligned."""
    num_words = len(head) if words is None else words
    aligned = "|".join("---" if number < num_words else "---:" for number in range(len(head)))
    return "\n".join([f"| {' | '.join(head)} |", f"|{aligned}|", *(f"| {' | '.join(row)} |" for row in rows)])


def html_rows(head: Iterable[str], rows: Iterable[str], between: str = "") -> str:
    """An HTML table from HTML rows."""
    first = f"<tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>"
    return f"<table>{between.join(['', first, *rows])}</table>"


def _cell(head: str, text: str) -> str:
    """A table cell; a difference beyond its interval is coloured, good or bad as its metric declares."""
    if not text or head not in COMPARED:
        return f"<td>{html.escape(text)}</td>"
    middle, _, half = text.partition(" ± ")
    shown = html.escape(text.replace("-", "−"))
    if half and abs(float(middle)) <= float(half):
        return f"<td>{shown}</td>"
    is_good = text.startswith("+" if is_higher_better(SCORED[COMPARED[head]]) else "-")
    return f"<td class={'good' if is_good else 'bad'}>{shown}</td>"
