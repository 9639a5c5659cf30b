"""Outer steps of a training at several sites (config/train/link.py): every `every` steps they make the
weights of all sites equal.

Each site sends its weight delta plus the residual, encoded by the link's codec, and sums all decoded deltas,
its own included, in the order of the sites' names. Each operation is rounded alone, so all sites get equal
bits in any layout. The compression error is the next residual (error feedback, 1901.09847). Optimiser states
are not exchanged. The schedule of rounds is in rounds.py.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from atelier.engine.checkpoint.collective_call import all_or_none, nothing
from atelier.engine.config.error import DamageError, DataError
from atelier.engine.extensions.sites.clip import clipped, most_norm
from atelier.engine.extensions.sites.codec_choice import CodecChoice, RoundPlan
from atelier.engine.extensions.sites.config.train.link import link_of
from atelier.engine.extensions.sites.contribution import Layout, StoredContribution, encoded, layout_of
from atelier.engine.extensions.sites.elastic import ElasticRounds
from atelier.engine.extensions.sites.encoded import layouts_of
from atelier.engine.extensions.sites.link_meter import LinkMeter
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Contribution
from atelier.engine.extensions.sites.outer_inbox import OuterInbox
from atelier.engine.extensions.sites.outer_state import OuterState, outer_of, takes_part
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.engine.loop.gather import digest_of, gathered, live_weights
from atelier.engine.loop.hooks import HookContext
from atelier.engine.loop.role_state import RoleState
from atelier.engine.model.placement import local, part_like
from atelier.engine.model.weights import Part, entries_of, write_files


class OuterSteps:
    """The outer steps of one training on this rank."""

    def __init__(self, context: HookContext, meter: LinkMeter) -> None:
        link, gang = link_of(context.training.train), context.gang
        self._link, self._gang, self._stop = link, gang, context.stop
        self._meter, self._say = meter, context.warn
        self._opened: set[str] = set()  # trajectories whose mailbox knows of this site
        self.elastic: ElasticRounds | None = None  # None in a strict membership
        self._plans: dict[str, RoundPlan] = {}  # by role
        self._choice = CodecChoice(link, gang)
        self._inbox = OuterInbox(context, self._choice)
        self.norms: dict[str, float] = {}  # of the last contributions by role, before clipping

    def plan(self, members: Iterable[RoleState]) -> None:
        """Cut the roles' weights, as of the first step, into fragments. A collective. Raises ConfigError for
        too many.
        """
        for member in members:
            if takes_part(member):
                held = {name: weight.detach() for name, weight in member.weights.trainable().items()}
                whole = layout_of(gathered(held, member.grid, self._gang))
                layouts = layouts_of(whole, self._link.fragments)
                rounds = Rounds(self._link, member.end - member.start)
                self._plans[member.name] = RoundPlan(rounds, layouts, self._link.codecs)
                outer_of(member).begin(digest_of(live_weights(member), self._gang), self._link)
                if self._link.is_elastic:
                    how = (partial(self._safe, member), partial(self._why_not, member), self._say)
                    self.elastic = ElasticRounds(self._link, self._gang, self._stop, member, *how)
                    outer_of(member).kept = member.learned()
        self._choice.begin(len(self._plans))

    def sits_out(self, clock: int) -> bool:
        """Whether this site skips step `clock`, since it has no part in the round. A collective."""
        if self.elastic is None:
            return False
        for plan in self._plans.values() if self._gang.is_first else ():
            number = self.elastic.number(clock)
            self._open_box(self.elastic.box(number), number, plan)
        return self.elastic.sits_out(clock)

    def take_due(self, members: Iterable[RoleState], step_s: float) -> None:
        """Send the contributions and take the outer steps that are due after this step. A collective.
        `step_s`: the seconds of the step, 0 if they are not typical.

        Raises StoppedError when a stop is asked during a wait for other sites, DataError for a message that
        does not fit, DamageError for a damaged one.
        """
        self._choice.trained(step_s)
        self.norms = {}
        for member in members:
            if takes_part(member):
                began, rounds = time.perf_counter(), self._plans[member.name].rounds
                step = member.step - member.start
                new, due = rounds.sent_at(step), rounds.due_at(step)
                if new or due:
                    self._gang.heartbeat.rest("link")
                with self.elastic.beating(new) if self.elastic is not None and new else nullcontext():
                    for number in due:
                        if number != new:
                            self._take(number, member)
                    if new and (self.elastic is None or self.elastic.contributes(new)):
                        self._send(new, member)
                    if new in due:
                        self._take(new, member)
                self._meter.add(member.name, link_s=time.perf_counter() - began)

    def _box(self, number: int, member: RoleState) -> Mailbox:
        """The mailbox of a round: that of the trajectory in which it was sent."""
        step = member.start + self._plans[member.name].rounds.step_of(number)
        return Mailbox(self._link.mailbox, member.segment(step).fingerprint, member.spec.code)

    def _layout(self, number: int, member: RoleState) -> Layout:
        plan = self._plans[member.name]
        return plan.layouts[plan.rounds.fragment(number)]

    @torch.no_grad()
    def _send(self, number: int, member: RoleState) -> None:
        """Send the delta plus the residual. Store the new compression error and, if the outer step comes
        later, the weights as sent.
        """
        outer, plan = outer_of(member), self._plans[member.name]
        box, layout = self._box(number, member), self._layout(number, member)
        if self._gang.is_first:
            self._open_box(box, number, plan)
        codec, began = self._choice.codec(number, member, box, plan), time.perf_counter()
        live = {name: one for name, one in member.weights.trainable().items() if name in layout}
        moved = {name: outer.anchor[name] - weight for name, weight in live.items()}
        if outer.residual:
            kept = self._link.outer.decay if self._link.outer.kind == "sparse" else 1.0
            moved = {name: one + outer.residual[name] * kept for name, one in moved.items()}
        if not self._is_finite(moved, member):
            assert self.elastic is not None  # else it is an error
            self._say(
                f"{member.name}: not finite after step {member.step}; this site has no part in round {number}"
            )
            self.elastic.refuse(number)
            return
        if self._link.clip:
            moved, self.norms[member.name] = clipped(
                moved, self._link.clip, grid=member.grid, gang=self._gang
            )
        sent = encoded(gathered(moved, member.grid, self._gang), codec, number)
        fragment = plan.rounds.fragment(number)

        def send(_: str, parts: Iterable[Part]) -> None:
            box.send(
                number,
                self._link.site,
                parts,
                outer.added,
                self._safe(member),
                codec=codec,
                fragment=fragment,
                tokens=member.tokens,
            )

        write_files({BODY: entries_of(sent)}, sent, send if self._gang.is_first else None)
        self._choice.took(codec, time.perf_counter() - began)
        size = plan.sizes[codec.text][fragment]
        self._meter.add(member.name, link_bytes=size, link_codec=self._link.codecs.index(codec))
        if self._link.feeds_back:  # on all ranks, also where this one has none of the weights
            self._gang.barrier()  # until it is written
            all_or_none(self._gang, partial(self._keep_lost, box, number, outer, moved, layout), nothing)
        for name, weight in live.items():
            if outer.sent:
                local(outer.sent[name]).copy_(local(weight))
        outer.pending[number] = dict(outer.added)

    def _take(self, number: int, member: RoleState) -> None:
        """Wait for the contributions of all sites that are in a round, and take its outer step."""
        outer, box, layout = outer_of(member), self._box(number, member), self._layout(number, member)
        began = time.perf_counter()
        line = self.elastic.who(number) if self.elastic is not None else None
        heads = self._inbox.heads(
            box, number, member, line.sha256 if line else self._link.sites, self._beat(number)
        )
        self._meter.add(
            member.name,
            link_wait_s=time.perf_counter() - began,
            link_received_bytes=sum(
                head.body.bytes for head in heads.values() if head.site != self._link.site
            ),
            link_round=number,
            link_delay_steps=member.step - member.start - self._plans[member.name].rounds.step_of(number),
        )
        files: dict[str, StoredContribution] = {}

        def open_all() -> None:
            files.update(self._inbox.open(box, heads, member, self._plans[member.name], line))
            for site, held in files.items():
                most = most_norm(self._link.clip, heads[site].codec.kind)
                held.check([name for name in member.weights.trainable() if name in layout], most)

        all_or_none(self._gang, open_all, nothing)
        self._add(files, number, member)
        outer.pending.pop(number, None)
        outer.added = {site: head.body.sha256 for site, head in heads.items()}
        outer.tokens |= {site: head.tokens for site, head in heads.items() if site != self._link.site}
        if line is not None:
            outer.log.follow(line)
            if self._link.site in line.sha256:
                outer.kept = member.learned()
            else:
                self._forgo(member)
        elif self._link.choose:
            outer.log.add(number, {site: head.codec for site, head in heads.items()}, outer.added)
        elastic = self.elastic
        safe = elastic.safe_everywhere(number) if elastic else min(head.safe for head in heads.values())
        if self._gang.is_first:
            self._forget(safe, member)

    def _forgo(self, member: RoleState) -> None:
        """Discard this site's steps of a round in which it has no part."""
        outer = outer_of(member)
        member.weights.forget_steps()
        member.take_back(outer.kept)
        for lost in outer.residual.values():
            local(lost).zero_()

    def _forget(self, done: int, member: RoleState) -> None:
        """Remove the messages of rounds that no site will ask for again. Those in flight at the end of a
        trunk stay: another training continues from there.
        """
        rounds = self._plans[member.name].rounds
        for segment in member.spec.segments:
            until = min(done, rounds.done_by(segment.end - member.start))
            Mailbox(self._link.mailbox, segment.fingerprint).forget(until)

    def _open_box(self, box: Mailbox, number: int, plan: RoundPlan) -> None:
        """Write once into a round's mailbox that this site trains there."""
        if box.trajectory not in self._opened:
            rounds = self.elastic.about(number) if self.elastic is not None else None
            box.open(self._link.site, self._link.sites, plan.sizes, rounds)
            self._opened.add(box.trajectory)

    def _is_finite(self, moved: Mapping[str, Tensor], member: RoleState) -> bool:
        """Whether the delta is finite on all ranks. A collective. In a strict membership it raises DataError
        instead of returning False.
        """

        def check() -> str:
            name = _not_finite(moved)
            if name and self.elastic is None:
                raise DataError(
                    f"roles.{member.name}: {name} is not finite after step {member.step}; not sent"
                )
            return name

        return not all_or_none(self._gang, check, lambda found: ["".join(found)] * len(found))

    def _keep_lost(
        self, box: Mailbox, number: int, outer: OuterState, moved: Mapping[str, Tensor], layout: Layout
    ) -> None:
        """Store the difference between the delta and its decoded contribution as the new residual."""
        head = box.contribution(number, self._link.site)
        assert head is not None  # it was just sent
        sent = self._inbox.stored(box, head, layout)
        for name, meant in moved.items():
            arrived = part_like(sent.whole(name), meant).to(local(meant))
            local(outer.residual[name]).copy_(local(meant) - arrived)

    def _safe(self, member: RoleState) -> int:
        """The last round that this site has in two checkpoints: the newer one may be damaged."""
        return self._plans[member.name].rounds.done_by(max(0, member.durable_steps[0] - member.start))

    def _beat(self, number: int) -> Callable[[], None] | None:
        """Reports this site's presence while it waits in a round; None in a strict membership."""
        return partial(self.elastic.beat, number) if self.elastic is not None else None

    def _why_not(self, member: RoleState, head: Contribution) -> str:
        """Why a contribution cannot be added; '' = it can. On this rank alone."""
        box, layout = self._box(head.round, member), self._layout(head.round, member)
        try:
            held = self._inbox.open(box, {head.site: head}, member, self._plans[member.name])[head.site]
            held.check(layout, most_norm(self._link.clip, head.codec.kind))
        except (DataError, DamageError) as bad:
            return str(bad)
        return ""

    @torch.no_grad()
    def _add(self, files: Mapping[str, StoredContribution], number: int, member: RoleState) -> None:
        """Add the contributions to the outer weights, which become the role's weights. Steps since it sent
        its own contribution are kept: w(t + d) + outer(t + d) - w(t).
        """
        outer, how, layout = outer_of(member), self._link.outer, self._layout(number, member)
        if not files:  # no site is in the round: all continue from the outer weights before it
            for name, weight in member.weights.trainable().items():
                local(weight).copy_(local(outer.anchor[name]))
            return
        has_trained = self._plans[member.name].rounds.step_of(number) < member.step - member.start
        for name, weight in member.weights.trainable().items():
            if name not in layout:
                continue
            total = torch.zeros_like(local(weight))
            for site, held in files.items():
                part = part_like(held.whole(name), weight).to(total)
                total = total + part * self._link.share(site, files)
            if how.kind == "nesterov":
                speed = local(outer.momentum[name])
                speed.copy_(speed * how.momentum + total)
                total = total + speed * how.momentum
            anchor = local(outer.anchor[name])
            anchor.copy_(anchor - total * how.lr)
            if has_trained:
                local(weight).copy_(local(weight) + (anchor - local(outer.sent[name])))
            else:
                local(weight).copy_(anchor)


def _not_finite(moved: Mapping[str, Tensor]) -> str:
    """The name of the first weight that is not finite; '' = none."""
    return next((name for name, part in moved.items() if not torch.isfinite(local(part)).all()), "")
