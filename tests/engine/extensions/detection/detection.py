"""A small generator, and roles that learn which tokens it has replaced."""

from collections.abc import Mapping
from typing import Any

from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.config.run_file import Member
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from tests.engine.extensions.sites.apart import STEPS, Apart
from tests.engine.row_inputs import VOCAB
from tests.engine.trainings import TrainingSetup, role

__all__ = ["STEPS"]
SIZES: dict[str, Any] = {
    "precision": "fp64",
    "global_batch": 4,
    "micro_batch": 2,
    "sequence": 32,
    "eval_sequences": 2,
}
MASKED = {"mlm": MLM(rate=0.25)}
MIXED = {"mlm": MLM(rate=0.25, rows=0.5), "document": DocumentLM(rows=0.5, weight=0.5)}


def ernie(hidden: int, num_layers: int = 1, **more: Any) -> Ernie:
    return Ernie(num_layers=num_layers, hidden=hidden, num_heads=2, vocab=VOCAB, nlu=NET, **more)


NET = Net(num_layers=1, hidden=16, num_heads=2)


def generator(objective: Mapping[str, ObjectiveSpec] | None = None, **more: Any) -> Role:
    return role(shape=ernie(16, dropout=0.1), lr=1e-2, objective=dict(objective or MASKED), **more)


def detector(delay: int = 0, own: Mapping[str, ObjectiveSpec] | None = None, **more: Any) -> Role:
    """`own`: what it learns besides."""
    return role(
        shape=ernie(16, dropout=0.1, classes={"replaced": 1}),
        lr=1e-2,
        objective={"replaced": Replaced(delay=delay), **(own or {})},
        teacher=more.pop("teacher", "generator"),
        start=more.pop("start", delay),
        **more,
    )


class DetectedApart(Apart):
    """A generator, called teacher, at site a, each that detects at a site of its own."""

    lesson = "drawings"
    sizes = SIZES | {"checkpoint_every": 3}

    def teacher(self, setup: TrainingSetup, steps: int) -> Member:
        return setup.member("teacher", generator(), steps)


def elsewhere(delay: int = 0, **more: Any) -> Role:
    return detector(delay, teacher="teacher", **more)
