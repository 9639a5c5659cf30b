"""The exams of a report: a table of scores with intervals, paired differences between models, the spread over
draws of the shots, and a picture.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from atelier.engine.config.direction import EXAMINED, is_higher_better
from atelier.engine.config.document import whole_of
from atelier.engine.config.exam import ANSWERS, EXAM, AnswerLine, ExamResult
from atelier.engine.config.exam_metrics import chance, difference
from atelier.engine.config.intervals import Bounded
from atelier.engine.config.record import Record
from atelier.engine.io.storage import join, read_object, read_text
from atelier.infra.report.lineage import find_trajectory
from atelier.infra.report.table import Table
from atelier.infra.store.store import Store

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # late: 0.5 s

PERCENT = (
    "accuracy", "accuracy_tokens", "accuracy_bytes", "accuracy_prior", "exact_match", "f1", "all_right",
    "same_answer",
)  # fmt: skip
FINE = ("bits_per_byte", "expected", "log_ratio")  # shown with three digits
SHORT = {
    "accuracy": "accuracy",
    "accuracy_tokens": "per token",
    "accuracy_bytes": "per byte",
    "accuracy_prior": "beside alone",
    "exact_match": "exact",
    "f1": "F1",
    "chrf": "chrF",
    "bleu": "BLEU",
    "expected": "expected value",
    "log_ratio": "log ratio",
    "all_right": "all variants right",
    "same_answer": "one answer",
    "perplexity": "perplexity",
    "bits_per_byte": "bits/byte",
}


@dataclass(frozen=True)
class ModelExam:
    """The exam of one model, or of a training's checkpoint at `step`, on one set, with its answers."""

    model: str
    fingerprint: str
    exam: ExamResult
    lines: Sequence[AnswerLine]
    step: int | None = None

    @property
    def label(self) -> str:
        """The model's name, with the checkpoint's step."""
        return self.model if self.step is None else f"{self.model}, step {self.step}"

    @property
    def main(self) -> str:
        """The main metric; '' if there is none."""
        return self.exam.get("main") or next(iter(self.exam["metrics"]), "")

    @property
    def is_drawn(self) -> bool:
        """Whether the picture shows it: a share of right answers, or a checkpoint's main metric."""
        return self.main in PERCENT or (self.step is not None and bool(self.main))

    @property
    def chance(self) -> float | None:
        """The accuracy of guessing; None where there are no options."""
        if self.exam["kind"] != "choice" or not self.lines:
            return None
        return chance([len(line.get("nats", [0.0])) for line in self.lines])


def exams_of(models: Mapping[str, Record], exams: Sequence[Record], store: Store) -> list[ModelExam]:
    """The exams of a report's models and of checkpoints, by set, model and step."""
    names = {record.fingerprint: name for name, record in models.items()}
    found = []
    for record in exams:
        exam = exam_result(record, store)
        lines = [json.loads(line) for line in read_text(_file(record, store, ANSWERS)).splitlines()]
        name, step = names.get(record.parents.get("model", ""), record.name), None
        if trajectory := record.parents.get("trajectory"):
            trained = find_trajectory(store, trajectory)
            name, step = trained.name if trained else trajectory[:8], whole_of(record.identity.get("step"))
        found.append(ModelExam(name, record.fingerprint, exam, cast(list[AnswerLine], lines), step))
    order = {name: place for place, name in enumerate(models)}
    sets = list(dict.fromkeys(each.exam["set"] for each in found))

    def place(each: ModelExam) -> tuple[int, int, str, int]:
        of_checkpoint = "" if each.step is None else each.model
        return sets.index(each.exam["set"]), order.get(each.model, 0), of_checkpoint, each.step or 0

    return sorted(found, key=place)


def exam_result(record: Record, store: Store) -> ExamResult:
    """The metrics of a finished exam. Raises DamageError if they cannot be read."""
    return cast(ExamResult, read_object(_file(record, store, EXAM), "an exam"))


def _file(record: Record, store: Store, name: str) -> str:
    path = next(entry.path for entry in record.files if entry.path.rpartition("/")[2] == name)
    return join(store.address(record.kind, record.fingerprint), path)


def exam_line(exam: ExamResult) -> str:
    """The main metric with its interval, and bits per byte: `mytask accuracy 52.1 (48.0 to 56.2) %, bits/byte
    1.83`.
    """
    found = {
        name: Bounded(each["value"], each["low"], each["high"]) for name, each in exam["metrics"].items()
    }
    main = exam.get("main") or next(iter(found), "")
    parts = [f"{SHORT[main]} {interval_text(main, found[main])}"] if main else []
    if "bits_per_byte" in found and main != "bits_per_byte":
        parts.append(f"{SHORT['bits_per_byte']} {found['bits_per_byte'].value:.2f}")
    return f"{exam['set']} {', '.join(parts)}"


def exam_tables(exams: Sequence[ModelExam]) -> list[Table]:
    """The scores; and where several models answered one set, the differences to its first model."""
    if not exams:
        return []
    metrics = [name for name in SHORT if any(name in each.exam["metrics"] for each in exams)]
    head = ("model", "set", "shots", "questions", *(SHORT[name] for name in metrics), "chance")
    rows = []
    for each in exams:
        cells = [told(each, name) for name in metrics]
        guess = "" if each.chance is None else f"{100 * each.chance:.1f} %"
        exam = each.exam
        rows.append([each.label, exam["set"], str(exam["shots"]), f"{exam['questions']:,}", *cells, guess])
    rows += _rivals(exams, metrics)
    tables = [Table("Exams", head, rows, ["model"] * len(rows)).filled()]
    finished = [each for each in exams if each.step is None]
    return [*tables, *_slices(exams), *_differences(finished), *_draws(finished)]


def _rivals(exams: Sequence[ModelExam], metrics: Sequence[str]) -> list[list[str]]:
    """Rows of the answers without a model that sets have, once for each set."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in exams:
        exam = each.exam
        for name, found in exam.get("rivals", {}).items():
            own = {key: Bounded(one["value"], one["low"], one["high"]) for key, one in found.items()}
            cells = [interval_text(key, own[key]) if key in own else "" for key in metrics]
            rows[exam["set"], name] = [name, exam["set"], "", f"{exam['questions']:,}", *cells, ""]
    return [*rows.values()]


def _slices(exams: Sequence[ModelExam]) -> list[Table]:
    """The parts of sets, and how far the largest lies from the least."""
    rows = []
    for each in exams:
        about = [each.label, each.exam["set"], str(each.exam["shots"])]
        leanings = each.exam.get("leanings", {})
        for found in each.exam.get("slices", []):
            value = interval_text(each.main, Bounded(found["value"], found["low"], found["high"]))
            leans = ", ".join(leanings.get(found["slice"], []))
            rows.append([*about, found["slice"], SHORT[each.main], value, leans])
        if (apart := each.exam.get("spread")) is not None:
            value, chance = (interval_text(each.main, Bounded(apart[key])) for key in ("value", "by_chance"))
            rows.append([*about, "largest - least", SHORT[each.main], f"{value}; by chance {chance}", ""])
    head = ("model", "set", "shots", "part", "metric", "value", "leans to")
    return [Table("Parts of sets", head, rows, [""] * len(rows)).filled()] if rows else []


def told(each: ModelExam, metric: str) -> str:
    """A metric as a cell: value and interval, in percent for shares."""
    if metric not in each.exam["metrics"]:
        return ""
    found = each.exam["metrics"][metric]
    return interval_text(metric, Bounded(found["value"], found["low"], found["high"]))


def interval_text(metric: str, found: Bounded, sign: str = "") -> str:
    is_share = metric in PERCENT
    scale, digits = (100.0, 1) if is_share else (1.0, 3 if metric in FINE else 1)
    value, low, high = found
    text = f"{scale * value:{sign}.{digits}f}"
    if low is not None and high is not None:
        text += f" ({scale * low:{sign}.{digits}f} to {scale * high:{sign}.{digits}f})"
    return text + (" %" if is_share else "")


def _differences(exams: Sequence[ModelExam]) -> list[Table]:
    """Of models on one set to the first of them; of one model with more shots to its fewest. All draws of the
    shots count.
    """
    every: dict[tuple[str, int], dict[str, list[ModelExam]]] = {}  # by set and shots, by model
    for each in exams:
        same = every.setdefault((each.exam["set"], each.exam["shots"]), {})
        same.setdefault(each.model, []).append(each)
    rows = []
    for (name, shots), models in every.items():
        (first, base), *others = models.items()
        for model, own in others:
            rows += _compared(own, base, f"{model} - {first}", f"{name}, {shots} shots")
    for (name, shots), models in every.items():
        least_shots = min(number for other, number in every if other == name)
        for model, own in models.items() if shots > least_shots else ():
            if base := every[name, least_shots].get(model):
                rows += _compared(own, base, model, f"{name}, {shots} - {least_shots} shots")
    head = ("models", "set", "metric", "difference, paired", "")
    return [Table("Differences on the same questions", head, rows, [""] * len(rows))] if rows else []


def _compared(
    ones: Sequence[ModelExam], others: Sequence[ModelExam], models: str, name: str
) -> list[list[str]]:
    """Rows of the differences in the main metric and in bits per byte, over all draws of both."""
    rows = []
    pairs = [(ones[n % len(ones)], others[n % len(others)]) for n in range(max(len(ones), len(others)))]
    mine = [_numbered(line, n) for n, (one, _) in enumerate(pairs) for line in one.lines]
    theirs = [_numbered(line, n) for n, (_, other) in enumerate(pairs) for line in other.lines]
    for metric in dict.fromkeys((ones[0].main, "bits_per_byte")):
        found = difference(mine, theirs, metric) if metric else None
        if found is not None:
            rows.append(
                [models, name, SHORT[metric], interval_text(metric, found, "+"), verdict(metric, found)]
            )
    return rows


def _numbered(line: AnswerLine, draw: int) -> AnswerLine:
    """The line under an id of its own in each draw; its group stays."""
    return {**line, "id": f"{line['id']} {draw}"}


def verdict(metric: str, found: Bounded) -> str:
    """Whether a difference is beyond its 95 % interval."""
    if found.low is None or found.high is None:
        return "one group: no interval"
    if found.low <= 0 <= found.high:
        return "within chance"
    if metric not in EXAMINED:
        return "differs"
    return "better" if (found.value > 0) == is_higher_better(EXAMINED[metric]) else "worse"


def _draws(exams: Sequence[ModelExam]) -> list[Table]:
    """The spread over draws of the shots, for sets asked in several."""
    by_set: dict[tuple[str, str, int], list[ModelExam]] = {}
    for each in exams:
        by_set.setdefault((each.model, each.exam["set"], each.exam["shots"]), []).append(each)
    rows = []
    for (model, source, shots), several in by_set.items():
        if len({each.exam["seed"] for each in several}) > 1:
            metric = several[0].main
            values = [each.exam["metrics"][metric]["value"] for each in several]
            low, high = Bounded(min(values)), Bounded(max(values))
            middle = Bounded(sum(values) / len(values))
            cells = [interval_text(metric, one) for one in (middle, low, high)]
            rows.append([model, source, str(shots), str(len(values)), SHORT[metric], *cells])
    head = ("model", "set", "shots", "draws", "metric", "mean", "least", "most")
    return [Table("Spread over draws of the shots", head, rows, [""] * len(rows))] if rows else []


def exams_png(exams: Sequence[ModelExam]) -> bytes:
    """PNG: a point with its interval for each model and set, and a mark at chance."""
    from matplotlib.figure import Figure  # late: 0.5 s

    from atelier.infra.report.loss_plot import COLOURS, GREY  # it imports matplotlib

    shown = [each for each in exams if each.is_drawn]
    models = list(dict.fromkeys(each.model for each in shown))
    figure = Figure(figsize=(8.0, 1.2 + 0.32 * len(shown)), dpi=150, layout="constrained")
    axes = figure.subplots(1, 1)
    for place, each in enumerate(shown):
        found, colour = each.exam["metrics"][each.main], COLOURS[models.index(each.model) % len(COLOURS)]
        if found["low"] is not None and found["high"] is not None:
            axes.plot([100 * found["low"], 100 * found["high"]], [place, place], color=colour, linewidth=1.6)
        axes.plot(100 * found["value"], place, "o", color=colour, markersize=5)
        if each.chance is not None:
            axes.plot(100 * each.chance, place, "|", color=GREY, markersize=12)
    axes.set_yticks(
        range(len(shown)),
        [f"{each.exam['set']}, {each.exam['shots']} shots, {each.model}" for each in shown],
        fontsize=8,
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("right, % with 95 % interval; grey mark: guessing")
    axes.spines[["top", "right"]].set_visible(False)
    target = io.BytesIO()
    figure.savefig(target, format="png", facecolor="white")
    return target.getvalue()


def curves_png(exams: Sequence[ModelExam]) -> bytes:
    """PNG: a line for each training, its 95 % intervals as a band, and a dashed line at chance."""
    from matplotlib.figure import Figure  # late: 0.5 s
    from matplotlib.ticker import MaxNLocator  # as above

    from atelier.infra.report.loss_plot import COLOURS  # it imports matplotlib

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


def _draw(axes: "Axes", name: str, line: Sequence[ModelExam], colour: str) -> None:
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
        axes.axhline(scale * chance, color="grey", linestyle="--", linewidth=1.0)
