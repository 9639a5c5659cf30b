"""Print tables: fitted to a terminal, else one line for each row."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.table import Table
from rich.text import Text

from atelier.engine.config.error import printable

LEAST_FOLDED = 20  # least width of a folded cell


def plain_console() -> Console:
    """A console that ignores markup and, without a terminal, does not cut lines."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=10_000)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), flexible: str = ""
) -> None:
    """`right` columns hold numbers; the `flexible` one folds when the terminal is narrow. If that is not
    enough, lines are longer than the terminal.
    """
    console = plain_console()
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="bold" if console.is_terminal else "", show_edge=False
    )
    numeric = set(right)
    cells = [[printable(cell, 0) for cell in row] for row in rows]
    width = 0
    for column, *texts in zip(columns, *cells, strict=True):
        is_flexible = column == flexible
        widest = max(map(cell_len, (column, *texts)))
        least = min(widest, LEAST_FOLDED) if is_flexible else widest
        width += least + 2
        table.add_column(
            column,
            justify="right" if column in numeric else "left",
            no_wrap=not is_flexible,
            overflow="fold",
            min_width=least,
        )
    for row in cells:
        table.add_row(*map(Text, row))  # Text: no markup
    console.size = ConsoleDimensions(max(console.width, width), console.height)  # for dumb terminals
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def amount(value: float) -> str:
    """1234567 -> 1.23 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}" if value else "0"


def duration(seconds: float) -> str:
    """90 -> 1.5 min, 0.004 -> 4.0 ms."""
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.1f} ms"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
