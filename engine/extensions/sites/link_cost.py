"""Estimate the link cost of a training at several sites: bytes, the rate that it needs, and how long it would
hold up the training. Uses the arithmetic of messages (encoded.py, rounds.py) and of the choice of codecs
(chooser.py). Seconds of encoding are not known beforehand. Torch-free.
"""

import math
from collections.abc import Mapping

from atelier.engine.config.foreign.adapters import INNER, OUTER
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.chooser import CodecChooser
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.train.link import Link, link_of
from atelier.engine.extensions.sites.encoded import Layout, layouts_of, sizes_of
from atelier.engine.extensions.sites.lessons import form_of, usual_bytes
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.engine.io.tensorfile import TensorEntry
from atelier.engine.plan.interconnect import LinkCost

BITS, MEGA = 8, 1e6
Shapes = dict[str, tuple[int, ...]]
MATRIX = ".weight"


def contribution_costs(
    link: Link, weights: Layout, *, steps: int, step_s: float, roles: int, rates: Mapping[str, float]
) -> list[LinkCost]:
    """The cost of each codec of a link with rows, for a role of `steps` steps. `roles`: the number of roles
    that share the link; `rates`: bytes a second to each other site, {} if not all are known. Raises
    ConfigError for too many fragments.
    """
    rounds = Rounds(link, steps)
    chooser = chooser_of(link, step_s)
    found: list[LinkCost] = []
    for codec, sizes in sizes_of(link.codecs, layouts_of(weights, link.fragments)).items():
        sent = [sizes[rounds.fragment(number)] for number in range(1, rounds.last + 1)]
        largest = max(sizes[1:] or sizes) * roles
        took = {size: chooser.seconds(-1, size * roles, rates) for size in {*sizes}}
        waited = math.fsum(
            max(0.0, took[size] - step_s * min(chooser.interval, rounds.due(n) - rounds.step_of(n)))
            for n, size in enumerate(sent, start=1)
        )
        found.append(
            {
                "codec": codec,
                "bytes": sizes[0],
                "fragments": sizes[1:],
                "sent": sum(sent),
                "needs_mbps": BITS * largest / chooser.time_s / MEGA if chooser.time_s else None,
                "seconds": chooser.seconds(-1, largest, rates) if rates else None,
                "stall": waited / (waited + steps * step_s) if rates and step_s else None,
            }
        )
    return found


def chooser_of(link: Link, step_s: float) -> CodecChooser:
    return CodecChooser(delay=link.delay, interval=link.interval, stall=link.stall, step_s=step_s)


def chosen(
    link: Link, costs: list[LinkCost], *, step_s: float, roles: int, rates: Mapping[str, float]
) -> Codec:
    """The codec that a site would take at these rates for all but its last contribution."""
    sizes = [max(cost["fragments"] or [cost["bytes"]]) * roles for cost in costs]
    return link.codecs[chooser_of(link, step_s).choose(sizes, rates, None)]


def lesson_cost(
    train: Train,
    model: ModelSpec,
    lesson: str,
    teacher: Role,
    *,
    steps: int,
    step_s: float,
    rate: float,
) -> LinkCost:
    """The cost of a teacher's messages about `steps` batches to one other site. `model`: the teacher's, or
    one with the same vocabulary; `rate`: bytes a second, 0 = not known.
    """
    size = usual_bytes(train, model, lesson, teacher)
    took = size / rate if rate else None
    waited = max(0.0, took - step_s) if took is not None and step_s else None
    return {
        "codec": form_of(link_of(train), lesson),
        "bytes": size,
        "fragments": [],
        "sent": size * steps,
        "needs_mbps": BITS * size / step_s / MEGA if step_s else None,
        "seconds": took,
        "stall": None if waited is None else waited / (waited + step_s),
    }


def exchanged(role: Role, model: ModelSpec, *, precision: str, widths: Mapping[str, int]) -> Layout | None:
    """The trained weights of a role whose `model` has a known vocabulary. `widths`: model widths by role;
    None if a weight needs the width of a teacher that is not among them.
    """
    found = _trained(role, model)
    for key, spec in role.objective.items():
        if teacher := role.teacher_of(key):
            added = spec.added(model, widths.get(teacher, 0))
            if any(0 in shape for shape in added.values()):
                return None
            found |= added
    dtype = "F64" if precision == "fp64" else "F32"
    return {name: TensorEntry(name, dtype, found[name]) for name in sorted(found)}


def _trained(role: Role, model: ModelSpec) -> Shapes:
    how, shapes = role.trainable, model.shapes()
    if how.kind == "none":
        return {}
    if how.kind == "parts":
        return {name: shape for name, shape in shapes.items() if name.split(".")[0] in how.parts}
    if how.kind == "prompt":
        return {"soft.weight": (how.length, model.hidden)}
    if how.kind == "full":
        return dict(shapes)
    found: Shapes = {}
    for name, shape in shapes.items():
        path = name.removesuffix(MATRIX)
        is_target = "blocks." in name and path.rsplit(".", 1)[-1] in how.targets
        if is_target and name.endswith(MATRIX) and len(shape) == 2:
            found[path + INNER], found[path + OUTER] = (how.rank, shape[1]), (shape[0], how.rank)
    return found
