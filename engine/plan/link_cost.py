"""What a training at several sites costs its link: bytes, the rate that it needs, and how long it would hold
up the training, by the arithmetic of the engine's messages (engine/link/encoded.py, rounds.py) and of its
choice of codecs (engine/link/chooser.py). Seconds of encoding are not known beforehand. Torch-free.
"""

import math
from collections.abc import Mapping
from typing import TypedDict

from atelier.engine.config.codec import Codec
from atelier.engine.config.link import Link
from atelier.engine.config.registry import ModelSpec
from atelier.engine.config.role import Role
from atelier.engine.config.train import Train
from atelier.engine.link.chooser import CodecChooser
from atelier.engine.link.encoded import Layout, layouts_of, sizes_of
from atelier.engine.link.lessons import form_of, usual_bytes
from atelier.engine.link.rounds import Rounds

BITS, MEGA = 8, 1e6


class LinkCost(TypedDict):
    """Of one codec: bytes of a message, of each fragment where there are several, and of all that a site
    sends to one other in the training. Mbit/s that it needs to each other at once, each way; seconds of the
    largest message but the last, and the share of the training's time that is waited. None = not known, as
    the link's rate or the steps' time is not; of `needs_mbps` also that no rate would do.
    """

    codec: str
    bytes: int
    fragments: list[int]
    sent: int
    needs_mbps: float | None
    seconds: float | None
    stall: float | None


def contribution_costs(
    link: Link, weights: Layout, *, steps: int, step_s: float, roles: int, rates: Mapping[str, float]
) -> list[LinkCost]:
    """Of each codec of a link that has rows, for a role of `steps` steps. `roles`: of the training, whose
    messages share the link; `rates`: bytes a second to each of the other sites, {} where not all are known.
    Raises ConfigError for more fragments than there can be.
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
    """Of a teacher's messages about the batches of `steps` steps, for one other site. `model`: the teacher's,
    or one of the same vocabulary; `rate`: bytes a second, 0 = not known.
    """
    size = usual_bytes(train, model, lesson, teacher)
    took = size / rate if rate else None
    waited = max(0.0, took - step_s) if took is not None and step_s else None
    return {
        "codec": form_of(train.link, lesson),
        "bytes": size,
        "fragments": [],
        "sent": size * steps,
        "needs_mbps": BITS * size / step_s / MEGA if step_s else None,
        "seconds": took,
        "stall": None if waited is None else waited / (waited + step_s),
    }
