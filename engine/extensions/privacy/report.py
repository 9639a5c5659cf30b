"""Lines of plans and reports on private trainings. Torch-free."""

from collections.abc import Mapping

from atelier.engine.config.base import Json
from atelier.engine.config.train import Train
from atelier.engine.extensions.privacy.config.train.privacy import Privacy
from atelier.engine.extensions.privacy.epsilon import (
    UNIT,
    Visits,
    accountant,
    epsilon,
    statement,
    why_none,
)


def foretold(train: Train, *, rows: int = 0) -> str:
    """The line of a plan. `rows`: number of rows of the data, 0 = not known yet."""
    privacy, steps, batch = Privacy.of(train), train.num_steps, train.global_batch
    assert privacy is not None
    what = f"each row's gradient is clipped to {privacy.clip:g}, noise {privacy.noise:g} x {privacy.clip:g}"
    if not privacy.has_epsilon:
        return f"{what}; no epsilon: {why_none(privacy)}"
    if rows:
        visits = Visits.of(-(-steps * batch // rows), rows=rows, batch=batch, is_aligned=rows % batch == 0)
        found = statement(privacy, rows=rows, batch=batch, steps=steps, visits=visits)
        return f"{what}; {sentence(found)}"
    times = [n for n in (1, 2, 4, 8) if n <= steps]
    each = ", ".join(f"{epsilon(privacy.noise, privacy.delta, n):.3g}" for n in times)
    return (
        f"{what}; epsilon at delta {privacy.delta:g} for {UNIT}, in at most"
        f" {', '.join(map(str, times))} of {steps} steps: at least {each} ({accountant()}; sampling: none"
        " assumed); the record says in how many, and whether a step has a row twice"
    )


def sentence(found: Mapping[str, Json]) -> str:
    """The line of a report, from the statement in a model's record."""
    if found["epsilon"] is None:
        return f"rows clipped to {found['clip']}, noise {found['noise']}; no epsilon: {found['why']}"
    return (
        f"epsilon {found['epsilon']:.3g} at delta {found['delta']:g} for {found['unit']}, read at most"
        f" {found['visits']} times in {found['steps']} steps ({found['accountant']}; sampling: none assumed);"
        f" with Poisson samples, which these are not, it would be {found['epsilon_if_poisson']:.3g}"
        f"{_weak(found)}"
    )


def _weak(found: Mapping[str, Json]) -> str:
    """A warning if delta allows giving away a whole row."""
    delta, rows = found["delta"], found["rows"]
    if isinstance(delta, float) and isinstance(rows, int) and rows and delta >= 1 / rows:
        return f"; delta is not below 1 / {rows} rows: lower train.privacy.delta"
    return ""
