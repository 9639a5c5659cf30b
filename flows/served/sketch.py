"""The loss of a running training as a small picture: SVG text, drawn without any library, because it is drawn
again every few seconds in a process that has other things to do.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 300, 56, 36, 16
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
MOST = 400  # points of a curve


def sketch(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """An SVG of the curves, each a list of (step, loss in nats a token)."""
    points = [point for curve in curves.values() for point in curve if math.isfinite(point[1])]
    if not points:
        return ""
    last = max(step for step, _ in points) or 1
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    high = high if high > low else low + 1.0

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - 12) * step / last

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    parts = [_axes(last, low, high, x, y)]
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in thinned(curve) if math.isfinite(v))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(
            f'<text x="{WIDTH - 16}" y="{TOP + 14 * number + 10}" text-anchor="end" fill="{colour}">'
            f"{escape(name)} {curve[-1][1]:.3f}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"'
        f' height="{HEIGHT}" font-family="sans-serif" font-size="12">'
        '<rect width="100%" height="100%" fill="white"/>'
        f"{''.join(parts)}</svg>"
    )


def thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most MOST points, evenly taken, the last one kept."""
    every = max(1, math.ceil(len(curve) / MOST))
    return [*curve[::every], curve[-1]]


def as_markdown(svg: str, title: str) -> str:
    """A picture that Prefect's page draws without asking a server."""
    return f"![{title}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _axes(
    last: float, low: float, high: float, x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    parts = []
    for i in range(5):
        loss = low + (high - low) * i / 4
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#e5e5e5"/>'
            f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end" fill="#555">{loss:.2f}</text>'
        )
        step = last * i / 4
        parts.append(
            f'<text x="{x(step):.1f}" y="{HEIGHT - 18}" text-anchor="middle" fill="#555">{step:.0f}</text>'
        )
    unit = "step; loss in nats a token"
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle" fill="#555">{unit}</text>')
    return "".join(parts)
