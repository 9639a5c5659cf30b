"""Which checkpoints of a trajectory stay: the newest, those at every n-th step, the best, the branch points.

What stays for longer than its training has a marker beside the checkpoints, so that whoever cleans up later
(`atelier gc`, a finished training with keep=0) need not know how it was asked for.
"""

from atelier.engine.checkpoint.folder import address, looks_whole, retain, steps
from atelier.engine.checkpoint.manifest import read_manifest
from atelier.engine.checkpoint.state import nested
from atelier.engine.loop.resume import checkpoints
from atelier.engine.spec.run import Segment
from atelier.engine.spec.train import Train
from atelier.engine.storage import join, names, remove, write_bytes

KEPT = "kept"  # <trajectory>/kept/<step>: for good; a branch point, or a multiple of train.keep_every
BEST = "best"  # <trajectory>/best/<step>: until better ones push it out


class Retention:
    """The rule of one training. Rank 0 applies it to a trajectory after each of its checkpoints."""

    def __init__(self, train: Train, protected: set[int]) -> None:
        self._keep, self._every, self._num_best = train.keep, train.keep_every, train.keep_best
        self._protected = protected
        self._losses: dict[str, float | None] = {}  # by address: a manifest is read once

    def apply(self, segment: Segment) -> list[int]:
        """Mark what is to stay, then remove the rest; returns the removed steps. An OSError leaves at worst
        more than was asked for.
        """
        found, marked = steps(checkpoints(segment)), marks(segment, KEPT)
        for step in found:
            if self._is_for_good(step) and step not in marked:
                write_bytes(join(segment.url, KEPT, str(step)), b"")
        if self._num_best:
            self._mark_best(segment, found)
        return retain(checkpoints(segment), max(1, self._keep), self._protected | stays(segment))

    def _is_for_good(self, step: int) -> bool:
        return bool(self._every and step % self._every == 0) or bool(self._keep and step in self._protected)

    def _mark_best(self, segment: Segment, found: list[int]) -> None:
        """Move the markers to the checkpoints with the lowest loss; new ones first, so that a kill between
        leaves one too many.
        """
        losses = {step: self._loss(address(checkpoints(segment), step), step) for step in found}
        ranked = sorted((loss, step) for step, loss in losses.items() if loss is not None)
        best, marked = {step for _, step in ranked[: self._num_best]}, marks(segment, BEST)
        for step in sorted(best - marked):
            write_bytes(join(segment.url, BEST, str(step)), b"")
        for step in sorted(marked - best):
            remove(join(segment.url, BEST, str(step)))

    def _loss(self, url: str, step: int) -> float | None:
        """The held-out loss of exactly these weights; None when none was measured or a file is not whole."""
        if url not in self._losses:
            self._losses[url] = held_out_loss(url, step) if looks_whole(url, step) else None
        return self._losses[url]


def held_out_loss(url: str, step: int) -> float | None:
    """What the checkpoint at `url` says it scored on held-out text at its own step; no tensor is read."""
    last = nested(read_manifest(url, step=step).values).get("last", {})
    return last.get("eval/loss") if last.get("eval/step") == step else None


def marks(segment: Segment, folder: str) -> set[int]:
    return {int(name) for name in names(join(segment.url, folder)) if name.isdigit()}


def stays(segment: Segment) -> set[int]:
    """The steps that some training marked as to stay, also when the model is finished."""
    return marks(segment, KEPT) | marks(segment, BEST)
