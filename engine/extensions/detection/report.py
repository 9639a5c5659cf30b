"""Report rows for roles that detect replaced tokens. Torch-free."""

import math
from collections.abc import Mapping, Sequence

from atelier.engine.config.metric import CurveLine

SHARE, RIGHT = "objective/share/", "objective/accuracy/"  # metrics of detection
LAST = 0.25  # share of the steps, at the end


def rows(name: str, lines: Sequence[CurveLine]) -> tuple[list[dict[str, object]], list[str]]:
    """The row of a detector's head, compared with a rule that calls no token replaced, and a note: means over
    the last quarter of its steps, each measured before learning from it. Empty for other models.
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
            f"{name}: {loss:.3f} nats per token in its last {len(last)} steps, in which {share:.1%} of the"
            f" tokens were replaced ({guess:.3f} nats for a guess that knows only this share)"
        )
    return found, notes


def _mean(key: str, lines: Sequence[Mapping[str, float | None]]) -> float:
    """The mean over the steps that have the number; steps without hidden tokens have none."""
    found = [value for line in lines if (value := line.get(key)) is not None]
    return math.fsum(found) / max(1, len(found))
