"""Draw the main metric of checkpoints by step, a panel for each set. Imports matplotlib without pyplot."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atelier.infra.report.exams import PERCENT, SHORT, ModelExam
from atelier.infra.report.loss_plot import COLOURS, GREY


def curves_png(exams: Sequence[ModelExam]) -> bytes:
    """PNG: a line for each training, its 95 % intervals as a band, and a dashed line at chance."""
    panels: dict[tuple[str, int, int], dict[str, list[ModelExam]]] = {}  # by set, shots and draw; by training
    for each in exams:
        key = (each.exam["set"], each.exam["shots"], each.exam["seed"])
        panels.setdefault(key, {}).setdefault(each.model, []).append(each)
    figure = Figure(figsize=(8.0, 0.6 + 2.8 * len(panels)), dpi=150, layout="constrained")
    names = list(dict.fromkeys(each.model for each in exams))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, ((name, shots, _), lines) in zip(grid[:, 0], panels.items(), strict=True):
        for training, line in lines.items():
            _draw(axes, training, line, colours[training])
        first = next(iter(lines.values()))[0]
        axes.set_title(f"{name}, {shots} shots", fontsize=9, loc="left")
        axes.set_ylabel(SHORT[first.main] + (", %" if first.main in PERCENT else ""), fontsize=9)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.grid(color="#e4e7ea", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1, 0].set_xlabel("step")
    if len(names) > 1:
        grid[0, 0].legend(frameon=False, fontsize=9)
    target = io.BytesIO()
    figure.savefig(target, format="png", facecolor="white")
    return target.getvalue()


def _draw(axes: Axes, name: str, line: Sequence[ModelExam], colour: str) -> None:
    line = sorted(line, key=lambda each: each.step or 0)
    steps = [each.step or 0 for each in line]
    scale = 100 if line[0].main in PERCENT else 1
    found = [each.exam["metrics"][each.main] for each in line]
    values = [scale * each["value"] for each in found]
    axes.plot(steps, values, "o-", color=colour, markersize=4, linewidth=1.5, label=name)
    lows = [values[n] if each["low"] is None else scale * each["low"] for n, each in enumerate(found)]
    highs = [values[n] if each["high"] is None else scale * each["high"] for n, each in enumerate(found)]
    axes.fill_between(steps, lows, highs, color=colour, alpha=0.15, linewidth=0)
    if (chance := line[-1].chance) is not None:
        axes.axhline(scale * chance, color=GREY, linestyle="--", linewidth=1.0)
