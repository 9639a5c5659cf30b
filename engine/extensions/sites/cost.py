"""Memory of outer steps for a plan. Torch-free."""

from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import link_of

OUTER = 4  # bytes of an outer weight, its momentum, its residual, or its value as sent


def bytes_of_weight(train: Train) -> int:
    """Bytes for each trained weight on its ranks, beside the weight's own and its optimiser's."""
    link = link_of(train)
    kept = {"average": 1, "nesterov": 2, "sparse": 1}[link.outer.kind] + link.feeds_back + (link.delay > 0)
    return OUTER * kept if link.is_linked else 0
