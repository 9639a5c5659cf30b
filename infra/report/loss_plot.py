"""Draw the loss plot of a report. Imports matplotlib without pyplot: no window, thread-safe."""

import io
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atelier.engine.config.metric import CurveLine

# Okabe and Ito: distinguishable with any colour vision
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
Lines = Sequence[CurveLine]
LEADER = "#1c1c1c"
GREY = "#6b747b"


def loss_png(
    curves: Mapping[str, Lines],
    *,
    controls: Mapping[str, str] | None = None,
    starts: Mapping[str, int] | None = None,
) -> bytes:
    """PNG with the gains of students over their controls, if any; below it training loss (smoothed line),
    held-out loss (dots) and the steps at which students started.
    """
    controls, starts = dict(controls or {}), dict(starts or {})
    shown = {name: list(lines) for name, lines in curves.items() if lines}
    gaps = {c: s for c, s in controls.items() if c in shown and s in shown and _gap(shown[s], shown[c])}
    figure = Figure(figsize=(9.0, 7.0 if gaps else 5.0), dpi=150, layout="constrained")
    if gaps:
        gains, losses = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 3))
    else:
        gains, losses = None, figure.subplots(1, 1)
    colours = colours_of(list(shown), controls)
    for name, lines in shown.items():
        _draw(losses, name, lines, colours[name], is_control=name in controls)
    _mark_starts(losses, starts, shown, colours, controls)
    _crop(losses, shown)
    losses.set_ylabel("loss (nats per token); dots: eval loss (windows)")
    losses.set_xlabel("step")
    losses.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if gains is not None:
        _draw_gains(gains, gaps, shown, colours)
        losses.set_title(
            "line: training, smoothed    dot: held-out    dashed: the same network without a teacher",
            fontsize=9,
            color=GREY,
        )
    for axes in (losses, *([gains] if gains is not None else [])):
        axes.grid(color="#e4e7ea", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = losses.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        frameon=False,
        fontsize=10,
        loc="outside upper center",
        ncols=min(5, max(1, len(shown))),
    )
    target = io.BytesIO()
    figure.savefig(target, format="png", facecolor="white")
    return target.getvalue()


def colours_of(names: Sequence[str], controls: Mapping[str, str]) -> dict[str, str]:
    """Black for the first name that is neither student nor control, other colours for the others; a control
    has its student's.
    """
    students = set(controls.values())
    own = [name for name in names if name not in controls]
    leader = next((name for name in own if name not in students), None) if len(own) > 1 else None
    rest = [name for name in own if name != leader]
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(rest)}
    if leader is not None:
        colours[leader] = LEADER
    return colours | {control: colours.get(student, GREY) for control, student in controls.items()}


def _values(lines: Lines, key: str) -> tuple[list[int], list[float]]:
    found = [
        (line["step"], value) for line in lines if (value := line.get("values", {}).get(key)) is not None
    ]
    return [step for step, _ in found], [value for _, value in found]


def smooth(values: Sequence[float], span: float) -> list[float]:
    """Exponential moving average over about `span` values, with bias correction."""
    keep, mean, weight, result = 1 - 1 / max(span, 1.0), 0.0, 0.0, []
    for value in values:
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        result.append(mean / weight)
    return result


def _draw(axes: Axes, name: str, lines: Lines, colour: str, *, is_control: bool) -> None:
    style = (0, (4, 2)) if is_control else "-"
    steps, losses = _values(lines, "loss")
    axes.plot(
        steps, smooth(losses, len(losses) / 50), color=colour, linestyle=style, linewidth=1.5, label=name
    )
    steps, losses = _values(lines, "eval/loss")
    axes.plot(
        steps,
        losses,
        color=colour,
        linestyle="none",
        marker="o",
        markersize=4.5,
        markerfacecolor="white" if is_control else colour,
        markeredgewidth=1.2,
    )


def _mark_starts(
    axes: Axes,
    starts: Mapping[str, int],
    shown: Mapping[str, Lines],
    colours: Mapping[str, str],
    controls: Mapping[str, str],
) -> None:
    """A dotted line at the step where a student began; students of the same step share one."""
    together: dict[int, list[str]] = {}
    for name, step in starts.items():
        if step > 0 and name in shown and name not in controls:
            together.setdefault(step, []).append(name)
    for step, names in together.items():
        axes.axvline(step, color=colours[names[0]] if len(names) == 1 else GREY, linestyle=":", linewidth=1.3)
        text = f"{', '.join(names)} start{'s' if len(names) == 1 else ''} at {step}"
        axes.annotate(
            text,
            (step, 0.99),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            fontsize=9,
            rotation=90,
            color=colours[names[0]] if len(names) == 1 else GREY,
            va="top",
            ha="right",
            bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.0},
        )


def _crop(axes: Axes, shown: Mapping[str, Lines]) -> None:
    """Crop the initial drop of the loss: the differences that matter come after it."""
    low, high = [], []
    for lines in shown.values():
        _, losses = _values(lines, "loss")
        _, looks = _values(lines, "eval/loss")
        even = smooth(losses, len(losses) / 50) if losses else []
        low += [min(even + looks)] if even or looks else []
        high += [even[len(even) // 15]] if even else [max(looks)] if looks else []
    if low and max(high) > min(low):
        room = max(high) - min(low)
        axes.set_ylim(min(low) - 0.06 * room, max(high) + 0.02 * room)


def _gap(student: Lines, control: Lines) -> list[tuple[int, float]]:
    """(step, held-out loss of the student minus the control's) where both were evaluated."""
    theirs = dict(zip(*_values(control, "eval/loss"), strict=True))
    return [(s, v - theirs[s]) for s, v in zip(*_values(student, "eval/loss"), strict=True) if s in theirs]


def _draw_gains(
    axes: Axes, gaps: Mapping[str, str], shown: Mapping[str, Lines], colours: Mapping[str, str]
) -> None:
    """Gain of each student over its control on held-out text, with the final numbers."""
    axes.axhline(0, color=GREY, linewidth=1.0)
    for control, student in gaps.items():
        steps, gaps_N = zip(*_gap(shown[student], shown[control]), strict=True)
        gained = [-gap for gap in gaps_N]
        axes.plot(
            steps,
            gained,
            color=colours[student],
            marker="o",
            markersize=4,
            linewidth=1.5,
            label=f"{student} {gained[-1]:+.2f}",
        )
    axes.legend(frameon=False, fontsize=9, loc="lower right", ncols=min(4, len(gaps)), title="at the end")
    axes.set_ylabel("nats gained from\nthe teacher", fontsize=9)
    axes.set_title(
        "held-out loss below that of the same network, seed and tokens without a teacher (above 0: better)",
        fontsize=9,
        color=GREY,
    )
