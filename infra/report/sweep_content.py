"""The content of a sweep's report: points, laws, and the share of the spread that each key explains."""

import math
from dataclasses import dataclass, field

from atelier.infra.report.scaling_law import BatchLaw, Law, Optimum, Trained


@dataclass(frozen=True)
class SweepRow:
    """A point: values of the swept keys as they were written, its state, and its value of the metric."""

    number: int
    state: str
    values: dict[str, str]
    value: float | None
    error: str = ""
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepContent:
    """Content of a sweep's report. `importance`: share of the metric's variance that a key explains."""

    title: str
    command: str
    metric: str
    direction: str
    rows: list[SweepRow]
    best: int | None = None
    best_command: str = ""
    importance: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    trained: list[Trained] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    optima: list[Optimum] = field(default_factory=list)
    batch_law: BatchLaw | None = None
    links: dict[str, str] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        return list(dict.fromkeys(key for row in self.rows for key in row.values))

    @property
    def valued(self) -> list[SweepRow]:
        return [row for row in self.rows if row.value is not None and math.isfinite(row.value)]


def importances(rows: list[SweepRow], direction: str) -> dict[str, float]:
    """Share of the values' variance that each key explains: functional ANOVA over a random forest (Hutter et
    al., ICML 2014), as in Optuna. {} when fewer than four points have a value or nothing varies.
    """
    import optuna  # imported here: 0.5 s that other reports do not need
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    found = [row for row in rows if row.value is not None and math.isfinite(row.value)]
    keys = [key for key in SweepContent("", "", "", "", found).keys if all(key in r.values for r in found)]
    space: dict[str, BaseDistribution] = {}
    for key in keys:
        texts = list(dict.fromkeys(row.values[key] for row in found))
        numbers = [number(text) for text in texts]
        if len(texts) < 2:
            continue
        if None in numbers:
            space[key] = CategoricalDistribution(texts)
        else:
            real = [n for n in numbers if n is not None]
            space[key] = FloatDistribution(
                min(real), max(real), log=min(real) > 0 and max(real) > 20 * min(real)
            )
    if len(found) < 4 or not space or len({row.value for row in found}) < 2:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction=optuna.study.StudyDirection[direction.upper()])
    values = [row.value for row in found if row.value is not None]
    low, high = min(values), max(values)
    for row in found:
        params = {
            key: row.values[key]
            if isinstance(space[key], CategoricalDistribution)
            else number(row.values[key])
            for key in space
        }
        study.add_trial(
            optuna.create_trial(params=params, distributions=space, value=_between(row.value, low, high))
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _between(value: float | None, low: float, high: float) -> float:
    """From 0 to 1: the trees see no variance in values that differ by very little, or are very large."""
    return ((value or 0.0) / 2 - low / 2) / (high / 2 - low / 2)


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
