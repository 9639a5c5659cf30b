"""Draw the plots of a sweep: parallel coordinates (one line per point, coloured by its value) with the keys'
importance, and a scaling law (held-out loss over tokens, one colour per model size). Imports matplotlib.
"""

import io
import math
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from atelier.engine.config.direction import is_higher_better, which_is_better
from atelier.infra.report.scaling_law import PER_TOKEN, BatchLaw, Law, Optimum, Trained
from atelier.infra.report.sweep_content import SweepContent, SweepRow, number

FURTHER = 4.0  # curves are extrapolated to this multiple of the longest training
LAW_DPI = 150


def law_png(content: SweepContent) -> bytes:
    """The scaling laws as PNG: loss over tokens; beside it, where they are known, the loss of a budget over
    the size of its model, and the critical batch over the loss.
    """
    columns = 1 + bool(content.optima) + (content.batch_law is not None)
    figure = Figure(figsize=(7.5 + 4 * (columns - 1), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    first, *others = figure.subplots(1, columns, squeeze=False, width_ratios=[1.6, 1, 1][:columns])[0]
    _over_tokens(first, content.trained, content.laws)
    if content.optima:
        _over_sizes(others.pop(0), content.laws[0], content.optima)
    if content.batch_law is not None:
        _over_losses(others.pop(0), content.batch_law, content.trained)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=LAW_DPI)
    return file.getvalue()


def _over_sizes(axes: Axes, law: Law, optima: Sequence[Optimum]) -> None:
    """The predicted loss of each budget over the model's size, its lowest point with the interval."""
    colours = mpl.colormaps["plasma"](np.linspace(0.1, 0.7, len(optima)))
    for one, colour in zip(optima, colours, strict=True):
        params = np.geomspace(one.params / 10, one.params * 10, 60)
        losses = [law(size, one.flops / PER_TOKEN / size) for size in params]
        axes.plot(params, losses, color=colour, linewidth=1.2, label=f"{one.flops:.2g} FLOPs")
        axes.plot(one.params_range, [one.loss] * 2, color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([one.params], [one.loss], "o", color=colour)
    axes.set_xscale("log")
    axes.set_xlabel("N, parameters of the model")
    axes.set_title("the best model of a budget", fontsize=10, loc="left")
    _finish(axes)


def _over_losses(axes: Axes, law: BatchLaw, points: Sequence[Trained]) -> None:
    """The critical batch over the losses that were seen, with its interval at the lowest."""
    losses = np.linspace(law.at, max(one.loss for one in points if one.params == law.params), 60)
    axes.plot(losses, [law(loss) for loss in losses], color="#3f7fa6", label="critical batch")
    axes.plot([law.at] * 2, law.interval, color="#3f7fa6", linewidth=3, solid_capstyle="butt")
    axes.set_yscale("log")
    axes.set_xlabel("held-out loss, nats a token")
    axes.set_ylabel("tokens a step")
    axes.set_title(f"B = {law.scale:.3g} / L^{law.power:.2f}", fontsize=10, loc="left")
    _finish(axes)


def _finish(axes: Axes) -> None:
    axes.legend(fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _over_tokens(axes: Axes, points: Sequence[Trained], laws: Sequence[Law]) -> None:
    """Points as measured, solid lines over their range, dashed beyond it."""
    sizes = sorted({one.params for one in points})
    colours = mpl.colormaps["viridis"](np.linspace(0.1, 0.8, len(sizes)))
    for size, colour in zip(sizes, colours, strict=True):
        mine = [one for one in points if one.params == size]
        axes.plot(
            [one.tokens for one in mine],
            [one.loss for one in mine],
            "o",
            color=colour,
            label=f"{size / 1e6:.3g} M parameters",
        )
        law = next((law for law in laws if law.params in (None, size)), None)
        if law is not None:
            low, high = mine[0].tokens, max(one.tokens for one in mine)
            for begin, end, style in ((low, high, "-"), (high, FURTHER * high, "--")):
                tokens = np.geomspace(begin, end, 60)
                axes.plot(tokens, [law(size, one) for one in tokens], style, color=colour, linewidth=1.2)
    axes.set_xscale("log")
    axes.set_xlabel("D, tokens seen")
    axes.set_ylabel("held-out loss, nats a token")
    axes.set_title("\n".join(map(str, laws)), fontsize=10, loc="left")
    _finish(axes)


WIDTH, HEIGHT, DPI = 9.0, 4.2, 150
WIDEST = 20  # a larger ratio of the range is drawn on a log scale


def parallel_png(content: SweepContent) -> bytes:
    """The parallel coordinates as PNG, with bars of importance where known."""
    rows = content.valued
    columns = [*content.keys, content.metric]
    has_bars = bool(content.importance)
    figure = Figure(figsize=(WIDTH + 3 * has_bars, HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 2, width_ratios=[3, 1]) if has_bars else figure.add_gridspec(1, 1)
    axes = figure.add_subplot(grid[0, 0])
    _lines(axes, content, rows, columns)
    if has_bars:
        _bars(figure.add_subplot(grid[0, 1]), content.importance)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()


def _lines(axes: Axes, content: SweepContent, rows: Sequence[SweepRow], columns: Sequence[str]) -> None:
    texts = {key: [row.values.get(key, "-") for row in rows] for key in content.keys}
    texts[content.metric] = [repr(row.value) for row in rows]
    heights = {key: _heights(values) for key, values in texts.items()}
    shades = heights[content.metric]
    colours = mpl.colormaps["viridis" if is_higher_better(content.direction) else "viridis_r"]
    for index, row in enumerate(rows):
        is_best = row.number == content.best
        axes.plot(
            range(len(columns)),
            [heights[key][index] for key in columns],
            color="#b8321a" if is_best else colours(0.08 + 0.84 * shades[index]),
            linewidth=2.6 if is_best else 1.3,
            alpha=1.0 if is_best else 0.75,
            zorder=3 if is_best else 2,
        )
    for place, key in enumerate(columns):
        axes.axvline(place, color="#8a949c", linewidth=0.8, zorder=1)
        marks = sorted({*zip(texts[key], heights[key], strict=True)}, key=lambda pair: pair[1])
        for text, height in marks[:: _every(texts[key])]:
            axes.annotate(
                _short(text),
                (place, height),
                xytext=(4, 0),
                textcoords="offset points",
                fontsize=8,
                va="center",
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6},
                zorder=4,
            )
    axes.set_xticks(range(len(columns)), columns, fontsize=9)
    axes.set_yticks([])
    axes.set_xlim(-0.15, len(columns) - 0.55)
    better = f"{content.metric}: {which_is_better(content.direction)}"
    axes.set_title(f"{len(rows)} points; {better}; red: the best", fontsize=10, loc="left")
    for side in axes.spines.values():
        side.set_visible(False)


def _heights(texts: Sequence[str]) -> list[float]:
    """Positions from 0 to 1: numbers by value (or its log), other values evenly in order of appearance."""
    numbers = [number(text) for text in texts]
    if None in numbers:
        names = list(dict.fromkeys(texts))
        return [names.index(text) / max(1, len(names) - 1) for text in texts]
    real = [n for n in numbers if n is not None]
    if min(real) > 0 and max(real) > WIDEST * min(real):
        real = [math.log(n) for n in real]
    low, high = min(real), max(real)
    return [(n - low) / (high - low) if high > low else 0.5 for n in real]


def _every(texts: Sequence[str]) -> int:
    return max(1, len(set(texts)) // 8)


def _short(text: str) -> str:
    value = number(text)
    return text[:18] if value is None else f"{value:.4g}"


def _bars(axes: Axes, importance: dict[str, float]) -> None:
    names = list(importance)[::-1]
    axes.barh(names, [importance[name] for name in names], color="#3f7fa6")
    axes.set_xlim(0, 1)
    axes.set_title("share of the spread", fontsize=10, loc="left")
    axes.tick_params(labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
