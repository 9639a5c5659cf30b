"""Outer steps of a training at several sites (engine/config/link.py): every `every` steps the weights of all
sites become the same again.

A site sends by what its weights have moved since the last outer step, in the form of the link's codec, and
adds up what all sites sent, its own as everybody reads it, in the order of their names, each operation
rounded alone: outer weights are equal bits everywhere, whatever the sites' layouts. What the codec lost is
added to the next contribution (error feedback, 1901.09847). Optimiser states stay where they are. When rounds
are sent and their steps taken: engine/link/rounds.py.
"""

import math
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.error import DataError, StoppedError
from atelier.engine.config.link import Link
from atelier.engine.io.storage import fetch, is_local, join, local_path, verify
from atelier.engine.link.mailbox import BODY, Contribution, Mailbox
from atelier.engine.link.rounds import Rounds, cut
from atelier.engine.loop.codec_choice import CodecChoice, RoundPlan
from atelier.engine.loop.contribution import Layout, StoredContribution, encoded, layout_of
from atelier.engine.loop.gather import gathered
from atelier.engine.loop.outer_state import OuterState
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.stop import StopRequest
from atelier.engine.model.placement import local, part_like
from atelier.engine.model.weights import Part, entries_of, write_files
from atelier.engine.parallel.gang import Gang

LOOK_EVERY = 0.2  # seconds between looks for messages


class OuterSteps:
    """The outer steps of one training on this rank."""

    def __init__(self, link: Link, gang: Gang, stop: StopRequest, scratch: Path) -> None:
        self._link, self._gang, self._stop, self._scratch = link, gang, stop, scratch
        self._plans: dict[str, RoundPlan] = {}  # by role
        self._choice = CodecChoice(link, gang)
        self.sent_bytes = 0  # of this site's contributions after the last step

    def plan(self, members: Iterable[RoleState]) -> None:
        """Cut the weights of the roles into fragments. A collective. Raises ConfigError for too many."""
        for member in members:
            if member.outer is not None:
                held = {name: weight.detach() for name, weight in member.weights.trainable().items()}
                whole = layout_of(gathered(held, member.grid, self._gang))
                sizes = {name: math.prod(entry.shape) for name, entry in whole.items()}
                found = cut(sizes, self._link.fragments) if self._link.fragments > 1 else []
                parts = [{name: whole[name] for name in whole if name in names} for names in found]
                rounds = Rounds(self._link, member.end - member.start)
                self._plans[member.name] = RoundPlan(rounds, [whole, *parts], self._link.codecs)
        self._choice.begin(len(self._plans))

    def take_due(self, members: Iterable[RoleState], step_s: float) -> float:
        """Send the contributions and take the outer steps that are due after this step; returns the seconds
        of it. A collective. `step_s`: the seconds of the step, 0 where they say nothing of others.

        Raises StoppedError when a stop is asked while others are waited for; DataError for a message that
        does not fit, DamageError for one that is damaged.
        """
        began, self.sent_bytes = time.perf_counter(), 0
        self._choice.trained(step_s)
        for member in members:
            if member.outer is not None:
                rounds, step = self._plans[member.name].rounds, member.step - member.start
                new = rounds.sent_at(step)
                due = rounds.due_at(step)
                if new or due:
                    self._gang.heartbeat.rest("link")
                for number in due:
                    if number != new:
                        self._take(number, member)
                if new:
                    self._send(new, member)
                if new in due:
                    self._take(new, member)
        return time.perf_counter() - began

    def _box(self, number: int, member: RoleState) -> Mailbox:
        """Where the messages of a round lie: that of the trajectory in which it was sent."""
        step = member.start + self._plans[member.name].rounds.step_of(number)
        return Mailbox(self._link.mailbox, member.segment(step).fingerprint)

    def _layout(self, number: int, member: RoleState) -> Layout:
        plan = self._plans[member.name]
        return plan.layouts[plan.rounds.fragment(number)]

    @torch.no_grad()
    def _send(self, number: int, member: RoleState) -> None:
        """Send by what the weights of a round have moved, and what was lost before; keep what is lost now,
        and the weights as they are where the outer step comes later.
        """
        outer, plan = member.outer, self._plans[member.name]
        assert outer is not None  # it takes part
        box, layout = self._box(number, member), self._layout(number, member)
        if self._gang.is_first:
            box.open(self._link.site, self._link.sites, plan.sizes)
        codec, began = self._choice.codec(number, member, box, plan), time.perf_counter()
        live = {name: one for name, one in member.weights.trainable().items() if name in layout}
        moved = {name: outer.anchor[name] - weight for name, weight in live.items()}
        if outer.residual:
            moved = {name: one + outer.residual[name] for name, one in moved.items()}
        all_or_none(self._gang, partial(_check_finite, moved, member), nothing)
        sent = encoded(gathered(moved, member.grid, self._gang), codec, number)

        def send(_: str, parts: Iterable[Part]) -> None:
            box.send(
                number,
                self._link.site,
                parts,
                outer.added,
                self._safe(member),
                codec=codec,
                fragment=plan.rounds.fragment(number),
            )

        write_files({BODY: entries_of(sent)}, sent, send if self._gang.is_first else None)
        self._choice.took(codec, time.perf_counter() - began)
        self.sent_bytes += plan.sizes[codec.text][plan.rounds.fragment(number)]
        if outer.residual:
            self._gang.barrier()  # it is written
            all_or_none(self._gang, partial(self._keep_lost, box, number, outer, moved, layout), nothing)
        for name, weight in live.items():
            if outer.sent:
                local(outer.sent[name]).copy_(local(weight))
        outer.pending[number] = dict(outer.added)

    def _take(self, number: int, member: RoleState) -> None:
        """Take the outer step of a round, when all sites' contributions are there."""
        outer, box, layout = member.outer, self._box(number, member), self._layout(number, member)
        assert outer is not None  # it takes part
        heads = self._heads(box, number, member)
        files: dict[str, StoredContribution] = {}

        def open_all() -> None:
            files.update(self._open(box, heads, member))
            for held in files.values():
                held.check(name for name in member.weights.trainable() if name in layout)

        all_or_none(self._gang, open_all, nothing)
        self._add(files, number, member)
        del outer.pending[number]
        outer.added = {site: head.body.sha256 for site, head in heads.items()}
        if self._link.choose:
            outer.log.add(number, {site: head.codec for site, head in heads.items()}, outer.added)
        if self._gang.is_first:
            self._forget(min(head.safe for head in heads.values()), member)

    def _forget(self, done: int, member: RoleState) -> None:
        """Remove the messages of rounds that nobody will ask for again. Those that were on their way at the
        end of a trunk stay: another training goes on from there.
        """
        rounds = self._plans[member.name].rounds
        for segment in member.spec.segments:
            until = min(done, rounds.done_by(segment.end - member.start))
            Mailbox(self._link.mailbox, segment.fingerprint).forget(until)

    def _keep_lost(
        self, box: Mailbox, number: int, outer: OuterState, moved: Mapping[str, Tensor], layout: Layout
    ) -> None:
        """Keep the difference of what was to be sent and what others read of it."""
        head = box.contribution(number, self._link.site)
        assert head is not None  # it was just sent
        sent = self._stored(box, head, layout)
        for name, meant in moved.items():
            arrived = part_like(sent.whole(name), meant).to(local(meant))
            local(outer.residual[name]).copy_(local(meant) - arrived)

    def _safe(self, member: RoleState) -> int:
        """The last round that this site has in two checkpoints: the newer one may be damaged."""
        return self._plans[member.name].rounds.done_by(max(0, member.durable_steps[0] - member.start))

    def _heads(self, box: Mailbox, number: int, member: RoleState) -> dict[str, Contribution]:
        """The heads of all sites' messages, when all are there."""
        heads: dict[str, Contribution] = {}
        while True:
            missing = [site for site in self._link.sites if site not in heads]
            there = {site: head for site in missing if (head := box.contribution(number, site)) is not None}
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
            ahead = [each for each in later if box.read(each, site) is not None]
            if ahead and box.contribution(number, site) is None:  # not between two looks
                raise DataError(
                    f"{box.folder(number, site)}: is gone, {site} is in round {ahead[-1]}: this site's"
                    " checkpoints are too old to go on; begin all sites again"
                )

    def _open(
        self, box: Mailbox, heads: Mapping[str, Contribution], member: RoleState
    ) -> dict[str, StoredContribution]:
        """The contributions by site, verified."""
        result: dict[str, StoredContribution] = {}
        plan, outer = self._plans[member.name], member.outer
        assert outer is not None  # it takes part
        for site, head in sorted(heads.items()):
            place, fragment = join(box.folder(head.round, site), BODY), plan.rounds.fragment(head.round)
            if head.before != outer.pending[head.round]:
                raise DataError(f"{place}: {site} added other contributions in the round before")
            if head.codec not in self._link.codecs:
                known = ", ".join(codec.text for codec in self._link.codecs)
                raise DataError(f"{place}: is {head.codec.text}, and the training's {known}")
            self._choice.check(head.round, site, head.codec, head.body.sha256, place)
            if head.fragment != fragment:
                raise DataError(f"{place}: is of fragment {head.fragment}, and the round's is {fragment}")
            result[site] = self._stored(box, head, plan.layouts[fragment])
        return result

    def _stored(self, box: Mailbox, head: Contribution, layout: Layout) -> StoredContribution:
        """A contribution in the mailbox. Raises DamageError for one that is not as its head says."""
        place = join(box.folder(head.round, head.site), BODY)
        if is_local(place):
            path = local_path(place)
        else:
            path = self._scratch / f"link-{self._gang.rank}" / head.site / BODY
            fetch(place, path)
        verify(str(path), head.body, place)
        return StoredContribution(path, head.codec, layout, place)

    @torch.no_grad()
    def _add(self, files: Mapping[str, StoredContribution], number: int, member: RoleState) -> None:
        """Add the contributions to the outer weights, which are the role's from now on; of what it has
        learned since it sent its own, nothing is lost: w(t + d) + outer(t + d) - w(t).
        """
        outer, how, layout = member.outer, self._link.outer, self._layout(number, member)
        assert outer is not None  # it takes part
        has_trained = self._plans[member.name].rounds.step_of(number) < member.step - member.start
        for name, weight in member.weights.trainable().items():
            if name not in layout:
                continue
            total = torch.zeros_like(local(weight))
            for site, held in files.items():
                part = part_like(held.whole(name), weight).to(total)
                total = total + part * self._link.share(site)
            if how.kind == "nesterov":
                speed = local(outer.momentum[name])
                speed.copy_(speed * how.momentum + total)
                total = (total + speed * how.momentum) * how.lr
            anchor = local(outer.anchor[name])
            anchor.copy_(anchor - total)
            if has_trained:
                local(weight).copy_(local(weight) + (anchor - local(outer.sent[name])))
            else:
                local(weight).copy_(anchor)


def _check_finite(moved: Mapping[str, Tensor], member: RoleState) -> None:
    """Raise DataError before anything is sent that no site would take."""
    for name, part in moved.items():
        if not torch.isfinite(local(part)).all():
            raise DataError(f"roles.{member.name}: {name} is not finite after step {member.step}; not sent")
