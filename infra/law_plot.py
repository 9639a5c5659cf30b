"""The picture of a scaling law: held-out loss over tokens, a colour a model size, measured as dots."""

import io
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from atelier.infra.scaling_law import Law, Trained

FURTHER = 4.0  # times the longest training, that the curves are drawn to
DPI = 150


def law_png(points: Sequence[Trained], laws: Sequence[Law]) -> bytes:
    """The picture as PNG: whole lines where there are measurements, dashed beyond them."""
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
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
    axes.legend(fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()
