"""The privacy of one row in a private training (config/train/privacy.py): epsilon, computed by a library, and
its assumptions. Torch-free.

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
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.extensions.privacy.config.train.privacy import Privacy

LIBRARY = "dp-accounting"
UNIT = "one row of the training: a labelled example, a conversation, or a window of tokens"
COVERS = (
    "the trained weights, for whoever cannot read its checkpoints, which have the noise's key; not the model"
    " they begin from, no tokenizer, no metric and no choice made by one, and no whole site; other models of"
    " the same rows add to it"
)


class Visits(NamedTuple):
    """How often a training has the same row, at most."""

    times: int
    squares: int  # of how often a step has it, summed over the steps: it moves that step's sum as many times

    @staticmethod
    def of(epochs: int, *, rows: int, batch: int, is_aligned: bool) -> "Visits":
        """Of a shuffled pass over `rows` rows each epoch. Where an epoch ends inside a batch, a row may be
        its last one and the first of the next, twice in one step; `is_aligned`: it never does.
        """
        if batch <= rows:
            return Visits(epochs, epochs + (0 if is_aligned else 2 * (epochs // 2)))
        each = -(-batch // rows) + 1  # of a step
        return Visits(epochs, epochs * each)


def visits(drawn: Sequence[tuple[int, int, int]], batch: int) -> Visits:
    """How often steps of `batch` samples each have the same row, at most. `drawn`: of each data set its rows,
    and how often it is drawn before the first step and in all.
    """
    found = [Visits(0, 0)]
    for rows, begin, end in drawn:
        if end > begin:
            epochs = (end - 1) // rows - begin // rows + 1
            is_aligned = len(drawn) == 1 and rows % batch == 0 and begin % batch == 0
            found.append(Visits.of(epochs, rows=rows, batch=batch, is_aligned=is_aligned))
    return Visits(max(one.times for one in found), max(one.squares for one in found))


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
        return found | {"epsilon": None, "why": why_none(privacy)}
    return found | {
        "epsilon": round(epsilon(privacy.noise, privacy.delta, visits.squares), 6),
        "delta": privacy.delta,
        "accountant": accountant(),
        "epsilon_if_poisson": round(
            poisson_epsilon(privacy.noise, privacy.delta, rate=batch / rows, steps=steps), 6
        ),
    }


def why_none(privacy: Privacy) -> str:
    return "no noise is added" if not privacy.noise else "the noise follows from the seed"
