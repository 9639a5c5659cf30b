"""What a private training (engine/config/privacy.py) says of one row: epsilon, by a library, with what is
assumed. Torch-free.

Batches are a seeded shuffle of fixed size, not Poisson samples: which rows a step has depends on their number
alone. So no amplification by sampling is assumed. A step that has a row m times sees its gradient m times,
all from the same weights, and changes by at most m x `clip`; steps without it do not see it. That is as much
as one Gaussian mechanism with the noise divided by the root of the sum of m^2 over the steps (Gaussian
differential privacy, 1905.02383, corollary 3.3). Two data
sets are neighbours when a row of one is empty in the other (2103.00039, definition 1.1): batches keep their
size. Reports commonly compute with Poisson samples although batches were shuffled, which may say too little
(2403.17673); that number is told beside, as what it is.
"""

import math
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.privacy import Privacy, Visits

LIBRARY = "dp-accounting"
UNIT = "one row of the training: a labelled example, a conversation, or a window of tokens"
COVERS = (
    "the trained weights, for whoever cannot read its checkpoints, which have the noise's key; not the model"
    " they begin from, no tokenizer, no metric and no choice made by one, and no whole site; other models of"
    " the same rows add to it"
)


def check_library() -> None:
    """Raise ConfigError where the accountant is not installed."""
    if find_spec("dp_accounting") is None:
        raise ConfigError(
            "train.privacy",
            f"epsilon needs the package {LIBRARY}",
            f"pip install {LIBRARY} (the extra privacy), or train.privacy.secret=false, which claims none",
        )


def accountant() -> str:
    return f"{LIBRARY} {version(LIBRARY)}"


def epsilon(noise: float, delta: float, squares: int) -> float:
    """Of a row by the analytic Gaussian mechanism (1805.06530); `squares`: of how often each step has it,
    summed over the steps.
    """
    from dp_accounting import get_epsilon_gaussian  # an extra: only private trainings need it

    return float(get_epsilon_gaussian(noise / math.sqrt(squares), delta))


def poisson_epsilon(noise: float, delta: float, *, rate: float, steps: int) -> float:
    """Of a row that were in each of `steps` batches with the probability `rate`, by Renyi moments."""
    from absl import logging  # as above
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    found, before = RdpAccountant(), logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # of orders that do not converge, which are left out
    try:
        event = PoissonSampledDpEvent(min(1.0, rate), GaussianDpEvent(noise))
        return float(found.compose(SelfComposedDpEvent(event, steps)).get_epsilon(delta))
    finally:
        logging.set_verbosity(before)


def statement(privacy: Privacy, *, rows: int, batch: int, steps: int, visits: Visits) -> dict[str, Json]:
    """What a model's record says of its privacy. `rows`: of the data."""
    found: dict[str, Json] = {
        "unit": UNIT,
        "covers": COVERS,
        "clip": privacy.clip,
        "noise": privacy.noise,
        "rows": rows,
        "steps": steps,
        "visits": visits.times,
        "squares": visits.squares,
        "sampling": (
            "none assumed: fixed batches of a shuffle, which have a row at most `visits` times, `squares` is"
            " the sum of squares of how often each step has it; neighbours differ in one row, which is empty"
        ),
    }
    if not privacy.has_epsilon:
        return found | {"epsilon": None, "why": _why_none(privacy)}
    return found | {
        "epsilon": round(epsilon(privacy.noise, privacy.delta, visits.squares), 6),
        "delta": privacy.delta,
        "accountant": accountant(),
        "epsilon_if_poisson": round(
            poisson_epsilon(privacy.noise, privacy.delta, rate=batch / rows, steps=steps), 6
        ),
    }


def foretold(privacy: Privacy, *, steps: int, batch: int, rows: int = 0) -> str:
    """What a plan says of a training; `rows`: of the data, 0 = not known yet."""
    what = f"each row's gradient is clipped to {privacy.clip:g}, noise {privacy.noise:g} x {privacy.clip:g}"
    if not privacy.has_epsilon:
        return f"{what}; no epsilon: {_why_none(privacy)}"
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


def _why_none(privacy: Privacy) -> str:
    return "no noise is added" if not privacy.noise else "the noise follows from the seed"


def sentence(found: Mapping[str, Json]) -> str:
    """A statement in words."""
    if found["epsilon"] is None:
        return f"rows clipped to {found['clip']}, noise {found['noise']}; no epsilon: {found['why']}"
    return (
        f"epsilon {found['epsilon']:.3g} at delta {found['delta']:g} for {found['unit']}, read at most"
        f" {found['visits']} times in {found['steps']} steps ({found['accountant']}; sampling: none assumed);"
        f" of Poisson samples, which these are not, it would be {found['epsilon_if_poisson']:.3g}"
        f"{_weak(found)}"
    )


def _weak(found: Mapping[str, Json]) -> str:
    """A warning where delta allows a whole row to be given away."""
    delta, rows = found["delta"], found["rows"]
    if isinstance(delta, float) and isinstance(rows, int) and rows and delta >= 1 / rows:
        return f"; delta is not below 1 / {rows} rows: lower train.privacy.delta"
    return ""
