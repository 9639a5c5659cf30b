"""Roles that detect replaced tokens: for every layout, and drawn for the products."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from atelier.engine.config.model.ernie import Ernie, Net
from atelier.engine.config.objective.document import DocumentLM
from atelier.engine.config.objective.hidden import Hidden
from atelier.engine.config.objective.mlm import MLM
from atelier.engine.config.registry import ObjectiveSpec
from atelier.engine.config.role import Role
from atelier.engine.extensions.detection.config.objective.replaced import Replaced
from tests.engine.row_inputs import VOCAB
from tests.engine.trainings import role

DETECTED: Mapping[str, Callable[[random.Random], ObjectiveSpec]] = {
    "replaced": lambda draw: Replaced(weight=draw.choice((0.5, 1.0)), delay=draw.choice((0, 0, 1, 2))),
}
NETS: dict[str, Any] = {"nlu": Net(num_layers=1, hidden=16, num_heads=2), "num_kv_heads": 2, "vocab": VOCAB}
SMALL = Ernie(num_layers=2, hidden=16, num_heads=2, dropout=0.1, classes={"replaced": 1}, **NETS)


def detecting() -> dict[str, Role]:
    """A generator with dropout among rows of two kinds; those that detect at once, two steps later, and with
    tokens to predict besides.
    """
    rows = {"mlm": MLM(rate=0.25, rows=0.5), "document": DocumentLM(rows=0.5)}
    wide = Ernie(num_layers=2, hidden=32, num_heads=4, dropout=0.1, **NETS)

    def of(delay: int, **own: ObjectiveSpec) -> Role:
        objective = {"replaced": Replaced(delay=delay), **own}
        return role(shape=SMALL, objective=objective, teacher="generator", start=delay)

    generator = role(shape=wide, objective=rows, lr=1e-2)
    return {"generator": generator, "now": of(0), "late": of(2), "both": of(0, mlm=rows["mlm"])}


def or_detectors(draw: random.Random, roles: Mapping[str, Role]) -> dict[str, Role]:
    """In a sixth of the casts, in place of those roles, a generator and one or two that detect; perhaps with
    a student. Its draws move no other.
    """
    if draw.random() > 1 / 6:
        return dict(roles)
    rows: dict[str, ObjectiveSpec] = {"mlm": MLM(rate=0.3, sequence=draw.choice((0, 16)))}
    rows |= {"document": DocumentLM(rows=0.5)} if draw.random() < 0.5 else {}
    norm: Any = draw.choice(("rms", "layer"))
    shape = Ernie(num_layers=2, hidden=32, num_heads=4, norm=norm, dropout=draw.choice((0.0, 0.1)), **NETS)
    found = {"root0": role(shape=shape, objective=rows, lr=1e-2, start=draw.choice((0, 0, 1)))}
    for number in range(draw.choice((1, 2))):
        spec = DETECTED["replaced"](draw)
        own = {"mlm": rows["mlm"]} if draw.random() < 0.3 else {}
        start = int(found["root0"].start) + getattr(spec, "delay", 0)
        objective = {"replaced": spec, **own}
        found[f"detector{number}"] = role(shape=SMALL, objective=objective, teacher="root0", start=start)
    if draw.random() < 0.3:
        start, states = int(found["detector0"].start), {"hidden": Hidden()}
        found["student0"] = role(shape=SMALL, objective=states, teacher="detector0", start=start)
    return found
