"""The privacy of one row in a private training (config/train/privacy.py): epsilon, computed by a library, and
its assumptions. Torch-free.

Batches are a seeded shuffle of fixed size, not Poisson samples: a step's rows depend only on their numbers.
So no amplification by sampling is assumed. A step that has a row m times sees its gradient m times, all from
the same weights, and changes by at most m x `clip`; other steps do not see it. This equals one Gaussian
mechanism with the noise divided by the root of the sum of m^2 over steps (Gaussian differential privacy,
1905.02383, corollary 3.3). Two data sets are neighbours if a row of one is empty in the other (2103.00039,
definition 1.1), so batches keep their size. Reports often assume Poisson samples although batches were
shuffled, which may understate epsilon (2403.17673); that number is reported too, marked as such.
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
    """The most visits of a training to the same row."""

    times: int
    squares: int  # sum over steps of the squared number of times that a step has it

    @staticmethod
    def of(epochs: int, *, rows: int, batch: int, is_aligned: bool) -> "Visits":
        """For a shuffled pass over `rows` rows per epoch. If an epoch ends inside a batch, a row may be its
        last and the next one's first, twice in one step; `is_aligned`: this never happens.
        """
        if batch <= rows:
            return Visits(epochs, epochs + (0 if is_aligned else 2 * (epochs // 2)))
        each = -(-batch // rows) + 1  # per step
        return Visits(epochs, epochs * each)


def visits(drawn: Sequence[tuple[int, int, int]], batch: int) -> Visits:
    """The most visits of steps of `batch` samples to the same row. `drawn`: for each data set its rows, and
    its draws before the first step and in total.
    """
    found = [Visits(0, 0)]
    for rows, begin, end in drawn:
        if end > begin:
            epochs = (end - 1) // rows - begin // rows + 1
            is_aligned = len(drawn) == 1 and rows % batch == 0 and begin % batch == 0
            found.append(Visits.of(epochs, rows=rows, batch=batch, is_aligned=is_aligned))
    return Visits(max(one.times for one in found), max(one.squares for one in found))


def check_library() -> None:
    """Raise ConfigError if the accountant is not installed."""
    if find_spec("dp_accounting") is None:
        raise ConfigError(
            "train.privacy",
            f"epsilon needs the package {LIBRARY}",
            f"pip install {LIBRARY} (the extra privacy), or train.privacy.secret=false, which claims none",
        )


def accountant() -> str:
    return f"{LIBRARY} {version(LIBRARY)}"


def epsilon(noise: float, delta: float, squares: int) -> float:
    """Epsilon of a row by the analytic Gaussian mechanism (1805.06530); `squares`: sum over steps of the
    squared number of visits.
    """
    from dp_accounting import get_epsilon_gaussian  # optional: only for private trainings

    return float(get_epsilon_gaussian(noise / math.sqrt(squares), delta))


def poisson_epsilon(noise: float, delta: float, *, rate: float, steps: int) -> float:
    """Epsilon of a row that were in each of `steps` batches with probability `rate`, by Renyi moments."""
    from absl import logging  # as above
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    found, before = RdpAccountant(), logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # hide warnings on orders that do not converge and are left out
    try:
        event = PoissonSampledDpEvent(min(1.0, rate), GaussianDpEvent(noise))
        return float(found.compose(SelfComposedDpEvent(event, steps)).get_epsilon(delta))
    finally:
        logging.set_verbosity(before)


def statement(privacy: Privacy, *, rows: int, batch: int, steps: int, visits: Visits) -> dict[str, Json]:
    """The privacy statement for a model's record. `rows`: of the data."""
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
