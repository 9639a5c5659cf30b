"""What trainings of several sites cost. Torch-free."""

from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.config.train.link import link_of

OUTER = 4  # bytes of an outer weight, of its momentum, of what a codec lost, of the weight as it was sent


def bytes_of_weight(train: Train) -> int:
    """Memory of each trained weight on the ranks that share it, beside its own and its optimiser's."""
    link = link_of(train)
    kept = {"average": 1, "nesterov": 2, "sparse": 1}[link.outer.kind] + link.feeds_back + (link.delay > 0)
    return OUTER * kept if link.is_linked else 0
