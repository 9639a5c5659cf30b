"""Further training of the teacher of benchmarks/objectives.py, for the objectives that need more rows."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Aim:
    """How the teacher goes on: objectives by their share of the rows, and how it is trained."""

    shares: dict[str, float]
    steps: int
    rows: int  # of a step
    sequence: int
    lr: float
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of objectives
    continued: int = 0  # tokens after the beginning that imitations keep; 0 = all


AIMS = {
    "natural": Aim({"document": 0.2, "natural": 0.8}, 1600, 8, 160, 5e-4),
    "natural-short": Aim({"document": 0.2, "natural": 0.8}, 800, 32, 64, 1e-3, continued=16),
    "control": Aim(
        {"document": 0.1, "control": 0.9}, 3200, 16, 160, 5e-4,
        {"control": {"asked": 1.0, "dropped": 0.25, "cut": 0.75}},
    ),
    "knowledge": Aim({"document": 0.1, "mlm": 0.5, "knowledge": 0.4}, 600, 64, 64, 1e-3),
    "words": Aim({"document": 0.1, "mlm": 0.9}, 600, 64, 64, 1e-3),
    "distance": Aim({"document": 0.1, "distance": 0.9}, 1600, 64, 64, 1e-3),
    "reorder": Aim({"document": 0.1, "mlm": 0.3, "reorder": 0.6}, 1600, 64, 64, 1e-3),
}  # fmt: skip
