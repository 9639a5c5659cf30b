"""Outer steps of a training at several sites (engine/config/link.py): every `every` steps the weights of all
sites become the same again.

A site sends by what its weights have moved since the last outer step, and adds up what all sites sent, its
own as it was sent, in the order of their names, each operation rounded alone: outer weights are equal bits
everywhere, whatever the sites' layouts. Optimiser states stay where they are.
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.error import DataError, StoppedError
from atelier.engine.config.link import Link
from atelier.engine.io.storage import fetch, is_local, join, local_path, verify
from atelier.engine.link.mailbox import BODY, Contribution, Mailbox
from atelier.engine.loop.gather import gathered
from atelier.engine.loop.outer_state import OuterState
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.stop import StopRequest
from atelier.engine.model.placement import local, part_like
from atelier.engine.model.weights import Part, StoredWeights, entries_of, write_files
from atelier.engine.parallel.gang import Gang

LOOK_EVERY = 0.2  # seconds between looks for messages


class OuterSteps:
    """The outer steps of one training on this rank."""

    def __init__(self, link: Link, gang: Gang, stop: StopRequest, scratch: Path) -> None:
        self._link, self._gang, self._stop, self._scratch = link, gang, stop, scratch

    def take_due(self, members: Iterable[RoleState]) -> float:
        """Take the outer steps that are due; returns the seconds of them. Raises as `take`."""
        found = [member for member in members if member.outer is not None]
        due = [member for member in found if (member.step - member.start) % self._link.every == 0]
        return sum(self.take(member) for member in due)

    def take(self, member: RoleState) -> float:
        """Take an outer step; returns the seconds of it. A collective.

        Raises StoppedError when a stop is asked while others are waited for; DataError for a message that
        does not fit, DamageError for one that is damaged.
        """
        began, outer = time.perf_counter(), member.outer
        assert outer is not None  # it is due
        number = (member.step - member.start) // self._link.every
        box = Mailbox(self._link.mailbox, member.segment(member.step).fingerprint)
        self._gang.heartbeat.rest("link")
        if self._gang.is_first:
            box.open(self._link.site, self._link.sites)
        live = member.weights.trainable()
        moved = {name: outer.anchor[name] - weight.detach() for name, weight in live.items()}
        found = gathered(moved, member.grid, self._gang)

        def send(_: str, parts: Iterable[Part]) -> None:
            box.send(number, self._link.site, parts, outer.added, self._safe(member))

        write_files({BODY: entries_of(found)}, found, send if self._gang.is_first else None)
        heads = self._heads(box, number, member)
        files: dict[str, StoredWeights] = {}
        all_or_none(self._gang, lambda: files.update(self._open(box, heads, outer, moved)), nothing)
        self._add(files, member)
        if self._gang.is_first:
            done = min(head.safe for head in heads.values())
            for segment in member.spec.segments:
                Mailbox(self._link.mailbox, segment.fingerprint).forget(done)
        outer.added = {site: head.body.sha256 for site, head in heads.items()}
        return time.perf_counter() - began

    def _safe(self, member: RoleState) -> int:
        """The last round that this site has in two checkpoints: the newer one may be damaged."""
        return max(0, member.durable_steps[0] - member.start) // self._link.every

    def _heads(self, box: Mailbox, number: int, member: RoleState) -> dict[str, Contribution]:
        """The heads of all sites' messages, when all are there."""
        heads: dict[str, Contribution] = {}
        while True:
            missing = [site for site in self._link.sites if site not in heads]
            there = {site: head for site in missing if (head := box.read(number, site)) is not None}
            heads |= there
            if len(there) < len(missing) and (later := [each for each in box.rounds() if each > number]):
                self._check_missing(box, number, later, [site for site in missing if site not in there])
            lacking = torch.tensor([len(self._link.rows) - len(heads), int(self._stop.is_asked)])
            late, is_asked = self._gang.sum(lacking).tolist()
            if not late:
                return heads
            if is_asked:
                others = ", ".join(site for site in self._link.sites if site not in heads)
                raise StoppedError(
                    f"stopped while {member.name} waited for {others or 'others'} in round {number}, after"
                    f" step {member.step}; it goes on from its last checkpoint"
                )
            time.sleep(LOOK_EVERY)

    def _check_missing(self, box: Mailbox, number: int, later: list[int], missing: list[str]) -> None:
        """Raise DataError when a missing message will not come any more: its site has sent later ones."""
        for site in missing:
            if ahead := [each for each in later if box.read(each, site) is not None]:
                raise DataError(
                    f"{box.folder(number, site)}: is gone, {site} is in round {ahead[-1]}: this site's"
                    " checkpoints are too old to go on; begin all sites again"
                )

    def _open(
        self, box: Mailbox, heads: Mapping[str, Contribution], outer: OuterState, moved: Mapping[str, Tensor]
    ) -> dict[str, StoredWeights]:
        """The contributions by site, verified."""
        result: dict[str, StoredWeights] = {}
        for site, head in sorted(heads.items()):
            place = join(box.folder(head.round, site), BODY)
            if head.before != outer.added:
                raise DataError(f"{place}: {site} added other contributions in the round before")
            if is_local(place):
                path = local_path(place)
            else:
                path = self._scratch / f"link-{self._gang.rank}" / site / BODY
                fetch(place, path)
            verify(str(path), head.body, place)
            found = StoredWeights(path)
            for name, weight in moved.items():
                if name not in found or found.place(name).shape != tuple(weight.shape):
                    raise DataError(f"{place}: has no {name} of shape {tuple(weight.shape)}")
                if found.place(name).dtype != weight.dtype:
                    raise DataError(f"{place}: {name} is {found.place(name).dtype}, here {weight.dtype}")
                if not torch.isfinite(part_like(found[name], weight)).all():
                    raise DataError(f"{place}: {name} is not finite")
            result[site] = found
        return result

    @torch.no_grad()
    def _add(self, files: Mapping[str, StoredWeights], member: RoleState) -> None:
        """Add the contributions to the outer weights, which are the role's from now on."""
        outer, how = member.outer, self._link.outer
        assert outer is not None
        for name, weight in member.weights.trainable().items():
            total = torch.zeros_like(local(weight))
            for site, held in files.items():
                part = part_like(held[name], weight).to(total.device)
                total = total + part * self._link.share(site)
            if how.kind == "nesterov":
                speed = local(outer.momentum[name])
                speed.copy_(speed * how.momentum + total)
                total = (total + speed * how.momentum) * how.lr
            local(outer.anchor[name]).copy_(local(outer.anchor[name]) - total)
            local(weight).copy_(local(outer.anchor[name]))
