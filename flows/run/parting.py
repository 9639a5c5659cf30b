"""The first step at which the curves of two trainings part."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atelier.engine.config.metric import CurveLine
from atelier.engine.config.run_file import SegmentAddress
from atelier.infra.tracking.curve import SegmentReader

TOLERANCE = 1e-5  # relative, between two layouts: they add up in another order
LOSS = "loss"


@dataclass(frozen=True)
class Parting:
    """Comparison of two curves over the steps that both have. `step` is the first at which a value differs,
    with the differing values; `loss_step` the first at which the loss does. None = nowhere.
    """

    step: int | None
    values: dict[str, tuple[float | None, float | None]]
    loss_step: int | None
    common: int  # steps that both curves have
    first: tuple[int, int] | None  # the first and last step of the first curve; None = no steps
    second: tuple[int, int] | None


def lines_of(segments: tuple[SegmentAddress, ...]) -> list[CurveLine]:
    """All lines of a training, from its trunks on. Raises DamageError for lines that are no metric lines."""
    reader = SegmentReader(segments)
    reader.read()
    return sorted(reader.pending, key=lambda line: line["step"])


def devices_of(lines: Iterable[CurveLine]) -> list[str]:
    return sorted({line.get("device", "cpu") for line in lines})


def parting(first: Iterable[CurveLine], second: Iterable[CurveLine], *, tolerance: float = 0.0) -> Parting:
    """Compare the values that both curves logged at the same step. `tolerance` is relative to the larger
    value; 0 = any difference counts.
    """
    ours, theirs = ({line["step"]: line.get("values", {}) for line in lines} for lines in (first, second))
    common = sorted(ours.keys() & theirs.keys())
    step, loss_step, values = None, None, dict[str, tuple[float | None, float | None]]()
    for at in common:
        unequal = _unequal(ours[at], theirs[at], tolerance)
        if unequal and step is None:
            step, values = at, unequal
        if LOSS in unequal:
            loss_step = at
            break
    return Parting(step, values, loss_step, len(common), _span(ours), _span(theirs))


def _span(curve: Mapping[int, object]) -> tuple[int, int] | None:
    return (min(curve), max(curve)) if curve else None


def _unequal(
    ours: Mapping[str, float | None], theirs: Mapping[str, float | None], tolerance: float
) -> dict[str, tuple[float | None, float | None]]:
    pairs = {key: (ours[key], theirs[key]) for key in ours if key in theirs}
    return {key: pair for key, pair in pairs.items() if not _is_equal(*pair, tolerance)}


def _is_equal(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:  # not finite when it was logged
        return one is other
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or abs(one - other) <= tolerance * max(abs(one), abs(other))
