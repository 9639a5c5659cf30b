"""The rows of roles that detect replaced tokens in a report. Torch-free."""

import math
from collections.abc import Mapping, Sequence

from atelier.engine.config.metric import CurveLine

SHARE, RIGHT = "objective/share/", "objective/accuracy/"  # metrics of detection
LAST = 0.25  # of the steps


def rows(name: str, lines: Sequence[CurveLine]) -> tuple[list[dict[str, object]], list[str]]:
    """Of a model that detects replaced tokens the row of its head, beside one that finds none, and a note:
    means over the last quarter of its steps, in each of which it is asked before it learns. None of a model
    that detects nothing.
    """
    last = [line.get("values", {}) for line in lines[-max(1, round(len(lines) * LAST)) :]]
    found: list[dict[str, object]] = []
    notes: list[str] = []
    for key in sorted({key for values in last for key in values if key.startswith(SHARE)}):
        head = key.removeprefix(SHARE)
        share, right, loss = (_mean(each, last) for each in (key, RIGHT + head, f"objective/{head}"))
        row = {"name": name, "kind": "head", "head": head, "right": right}
        found.append({**row, "right_without": 1 - share, "by": "calls none replaced"})
        guess = -share * math.log(share) - (1 - share) * math.log1p(-share) if 0 < share < 1 else 0.0
        notes.append(
            f"{name}: {loss:.3f} nats a token in its last {len(last)} steps, in which {share:.1%} of the"
            f" tokens were replaced ({guess:.3f} nats for one that knows this share alone)"
        )
    return found, notes


def _mean(key: str, lines: Sequence[Mapping[str, float | None]]) -> float:
    """Over the steps that have the number: one without a hidden token has none."""
    found = [value for line in lines if (value := line.get(key)) is not None]
    return math.fsum(found) / max(1, len(found))
