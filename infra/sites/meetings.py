"""Presences and decisions of an elastic membership (membership.py of the extension), an item each. They have
a thread of their own, so that no transfer of weights makes a site look silent. At the coordinator's site the
agent decides too, so that the others continue while its ranks are down.
"""

import hashlib
from collections.abc import Iterator
from typing import TypeAlias

import grpc

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.document import check_as, parse_object
from atelier.engine.config.site_name import ANY
from atelier.engine.extensions.sites.coordinator import Coordinator, check_after, check_who
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Decision, Meeting, Presence
from atelier.engine.extensions.sites.messages import AboutRounds, AboutTraining
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Arrival, Incoming, NotTaken
from atelier.infra.sites.kinds import IsDue, Item, ItemKind
from atelier.infra.sites.refusals import Apart
from atelier.infra.sites.transfer import NOT_NEXT

WHAT = "a presence or decision"
Said: TypeAlias = Presence | Decision


class Meetings(ItemKind[Said]):
    """Presences and decisions of the trainings in a mailbox."""

    name = "meeting"
    early_s = 1.0
    timeout_s = 5.0  # short, so that a dead peer makes no other look silent

    def __init__(self, incoming: Incoming, audit: Audit) -> None:
        super().__init__(audit)
        self._url, self._site, self._incoming = incoming.url, incoming.site, incoming
        self._told: dict[tuple[str, str], Presence] = {}  # by peer and trajectory
        self._decided: dict[tuple[str, str], int] = {}  # the last round that a peer knows of, by the same
        self._coordinators: dict[str, Coordinator] = {}  # by trajectory

    def item(self, data: bytes, peer: str) -> Item[Said]:
        document = parse_object(data, peer, WHAT)
        kind = Decision if document.get("kind") == "decision" else Presence
        return self._item(check_as(kind, document, peer, WHAT))

    def _item(self, said: Said) -> Item[Said]:
        text = canonical(said.model_dump(mode="json", by_alias=True, exclude_none=True))
        about: dict[str, Json] = {}  # a presence has no line
        if isinstance(said, Decision):
            about = {
                "kind": said.kind,
                "trajectory": said.trajectory[:16],
                "round": said.line.round,
                "sites": [*said.line.sha256],
                "sha256": said.line.digest,
            }
        return Item(hashlib.sha256(text).hexdigest(), said, text, about)

    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterator[Item[Said]]]:
        """This site's presence, if it has changed; at the coordinator also the decisions that the
        peer lacks.
        """
        for about in self._incoming.trainings(peer):
            if about.rounds is not None:
                yield self.audit.readable(self._presence(about, about.rounds, peer))
                if about.rounds.coordinator == self._site:
                    yield self._decisions(about.trajectory, peer)

    def expects(self, peer: str) -> bool:
        return any(about.rounds is not None for about in self._incoming.trainings(peer))

    def _presence(self, about: AboutTraining, rounds: AboutRounds, peer: str) -> Iterator[Item[Said]]:
        meeting = Meeting(Mailbox(self._url, about.trajectory))
        presence = meeting.presence(self._site)
        if presence is not None and rounds.coordinator == self._site:
            theirs = meeting.heard(peer)
            if theirs is not None and theirs.round < presence.round:
                oldest = meeting.oldest(presence)
                if theirs.round < oldest:  # it has lost its decisions
                    presence = presence.model_copy(update={"oldest": oldest})
        if presence is not None and presence != self._told.get((peer, about.trajectory)):
            yield self._item(presence)

    def _decisions(self, trajectory: str, peer: str) -> Iterator[Item[Said]]:
        after, box = self._decided.get((peer, trajectory), 0), Mailbox(self._url, trajectory)
        for number in box.rounds():
            if number > after:  # one that is damaged here blocks no other
                yield from self.audit.readable(self._decision(Meeting(box), number))

    def _decision(self, meeting: Meeting, number: int) -> Iterator[Item[Said]]:
        if (found := meeting.decision(number)) is not None:
            yield self._item(found)

    def settled(self, peer: str, item: Item[Said], size: int = 0, seconds: float = 0.0) -> None:
        key = (peer, item.head.trajectory)
        if isinstance(item.head, Decision):
            self._decided[key] = item.head.line.round
        else:
            self._told[key] = item.head

    def early(self, peer: str, item: Item[Said], code: grpc.StatusCode | None) -> None:
        if code == NOT_NEXT:  # the peer has lost its decisions
            self._decided.pop((peer, item.head.trajectory), None)

    def holds_up(self, code: grpc.StatusCode | None) -> bool:
        """A peer whose file of one decision is damaged may accept later ones."""
        return code == NOT_NEXT

    def note(self, what: str, peer: str, item: Item[Said], *, is_new: bool) -> None:
        super().note(what, peer, item, is_new=False)

    def take(self, item: Item[Said], arrival: Arrival) -> Json:
        """Keep a peer's presence or decision. Raises NotTaken if it may not send it."""
        said = item.head
        about = self._incoming.about(said.trajectory, said.site, arrival.peer)
        if isinstance(said, Decision):
            self._take_decision(said, about, arrival.peer)
        elif about.rounds is None:
            raise NotTaken(f"all sites are in every round of {said.trajectory[:16]}")
        else:
            Meeting(Mailbox(self._url, said.trajectory)).tell(said)
        arrival.note(True)
        return None

    def _take_decision(self, decision: Decision, about: AboutTraining, peer: str) -> None:
        number = decision.line.round
        if about.rounds is None or about.rounds.coordinator != peer:
            raise NotTaken(_not_the_coordinator(about, peer))
        meeting = Meeting(Mailbox(self._url, decision.trajectory))
        check_who(decision.line, about.rounds)
        there, last = meeting.decision(number), meeting.last()
        if there is not None:
            if there != decision:
                raise NotTaken(f"another decision of round {number} is here")
            return
        if last is None:  # there is none yet, or none any more
            own = meeting.presence(self._site)
            if number > max(about.rounds.first, own.safe + 1 if own is not None else 0):
                raise NotTaken(f"round {number} is not the next one", "early", "round")
        elif number <= last.line.round:
            raise NotTaken(f"round {number} is over", "over")
        elif number > last.line.round + 1:
            raise NotTaken(f"round {number} is not the next one", "early", "round")
        if last is not None or number == 1:
            check_after(decision.line, about.rounds, last.line if last is not None else None)
        meeting.decide(decision)

    def decide(self) -> None:
        """Decide rounds as the coordinator while its ranks, which also check contributions, are silent. Not
        the first round of a branch: its log is that of the trunk. Raises the first error, after all.
        """
        each = Apart()
        for about in self._incoming.all.listed():
            if about.rounds is not None and about.rounds.coordinator == self._site:
                with each.one():
                    self._decide(about.trajectory, about.rounds)
        each.end()

    def _decide(self, trajectory: str, rounds: AboutRounds) -> None:
        box = Mailbox(self._url, trajectory)
        meeting, coordinator = Meeting(box), self._coordinators.get(trajectory)
        if coordinator is None or coordinator.rounds != rounds:  # the ranks have restarted
            coordinator = self._coordinators[trajectory] = Coordinator(self._site, rounds, box)
        last = meeting.last()
        number = last.line.round + 1 if last is not None else rounds.first
        is_heard = coordinator.hears(self._site)
        if is_heard or not rounds.may_decide(self._site) or number > rounds.last:
            return
        said = [meeting.presence(site) for site in rounds.rows] if last is None else []
        if last is not None or (number == 1 and not any(one is not None and one.round > 1 for one in said)):
            coordinator.look(number, last.line if last is not None else None)

    def hears(self, trajectory: str, site: str) -> bool:
        """Whether a site has reported within the grace of a training, as far as `decide` has looked."""
        coordinator = self._coordinators.get(trajectory)
        return coordinator is not None and coordinator.hears(site)


def _not_the_coordinator(about: AboutTraining, peer: str) -> str:
    rounds = about.rounds
    if rounds is None:
        return f"all sites are in every round of {about.trajectory[:16]}"
    if rounds.coordinator == ANY:
        return "train.link.membership.coordinator=any is for one mailbox without agents; name a site"
    return f"{rounds.coordinator} decides who is in a round of {about.trajectory[:16]}, not {peer}"
