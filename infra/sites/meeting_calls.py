"""The calls of an elastic membership (membership.py): that a site is there, and who is in a
round. They have a thread of their own, so that no transfer of weights makes a site look silent; and where
this site is the coordinator its agent decides as well, so that the others go on while its ranks are down.
"""

import hashlib
import json
import time
from collections.abc import Iterator

import grpc

from atelier.engine.config.base import Json, canonical
from atelier.engine.config.document import check_as, parse_object
from atelier.engine.config.error import AtelierError, DamageError
from atelier.engine.config.site_name import ANY
from atelier.engine.extensions.sites.coordinator import Coordinator, check_after, check_who
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Decision, Meeting, Presence
from atelier.engine.extensions.sites.messages import AboutRounds, AboutTraining
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.methods import ROOM, is_damage_here
from atelier.infra.sites.refusals import Apart, CompletedKeys, status_of
from atelier.infra.sites.transfer import NOT_NEXT, CallChannel, is_settled, reason

WHAT = "what is said of a meeting"
MOST = 100  # of one answer
AGAIN_S = 1.0  # after a decision that a peer could not take
PATIENCE_S = 5.0  # of a call: one dead peer makes no other look silent
Said = Presence | Decision


class MeetingCalls:
    """What an agent answers, asks and decides about the rounds of the trainings in the mailbox `url`."""

    def __init__(self, url: str, site: str, audit: Audit, service: str) -> None:
        self._url, self._site, self._audit, self._service = url, site, audit, service
        self._incoming = Incoming(url, site)
        self._told: dict[tuple[str, str], Presence] = {}  # by peer and trajectory
        self._decided: dict[tuple[str, str], int] = {}  # the last round that a peer knows of, by the same
        self._coordinators: dict[str, Coordinator] = {}  # by trajectory
        self._not_before: dict[tuple[str, str], float] = {}  # when decisions are told again, by the same
        self._refused = CompletedKeys[str]()  # digests of what is in the audit log as refused

    # what others ask, by name of the call

    def meet(self, request: bytes, peer: str) -> dict[str, Json]:
        """What a peer says."""
        self._take(parse_object(request, peer, WHAT), peer)
        return {}

    def met(self, request: bytes, peer: str) -> dict[str, Json]:
        """What this site has to say to a peer. `request`: the last decisions that it knows, by trajectory."""
        known = parse_object(request, peer, "a request").get("known")
        known = known if isinstance(known, dict) else {}
        found, room = list[Json](), ROOM
        for about in self._elastic(peer):
            after = known.get(about.trajectory)
            with self._audit.complaining():
                for said in self._said(about, peer, after, None) if isinstance(after, int) else ():
                    document = _document(said)
                    room -= len(canonical(document))
                    if len(found) < MOST and (room > 0 or not found):
                        found.append(document)
                        self._note("fetched", peer, said)
        return {"said": found}

    # what it asks

    def tell(self, channel: CallChannel, peer: str) -> None:
        """Tell a peer what is new. What is damaged here holds up no other training."""
        for about in self._elastic(peer):
            if time.monotonic() >= self._not_before.get((peer, about.trajectory), 0.0):
                with self._audit.complaining():
                    self._tell_of(about, channel, peer)

    def _tell_of(self, about: AboutTraining, channel: CallChannel, peer: str) -> None:
        key = (peer, about.trajectory)
        for said in self._said(about, peer, self._decided.get(key, 0), self._told.get(key)):
            refusals, early = list[grpc.RpcError](), list[grpc.RpcError]()

            def send(text: bytes = json.dumps(_document(said)).encode()) -> None:
                channel.unary_unary(f"/{self._service}/Meet")(text, timeout=PATIENCE_S)

            if not is_settled(send, refusals.append, early.append):
                self._not_before[key] = time.monotonic() + AGAIN_S
                if status_of(early[0]) != NOT_NEXT:
                    continue  # something is damaged there: what comes after it may be taken
                self._decided.pop(key, None)  # the peer has lost what it knew
                break  # later rounds are too early as well
            if isinstance(said, Presence):
                self._told[key] = said
            else:
                self._decided[key] = said.line.round
                self._note("not taken" if refusals else "sent", peer, said, "".join(map(reason, refusals)))

    def ask(self, channel: CallChannel, peer: str) -> None:
        """Ask a peer, which this site alone can call, what it has to say."""
        known: dict[str, Json] = {}
        for about in self._elastic(peer):
            with self._audit.complaining():
                last = Meeting(Mailbox(self._url, about.trajectory)).last()
                known[about.trajectory] = last.line.round if last else 0
        if not known:
            return
        request = json.dumps({"known": known}).encode()
        answer = channel.unary_unary(f"/{self._service}/Met")(request, timeout=PATIENCE_S)
        said = parse_object(answer, peer, WHAT).get("said")
        for document in said[:MOST] if isinstance(said, list) else ():
            try:
                if not isinstance(document, dict):
                    raise DamageError(f"{peer}: not {WHAT}", place=peer)
                self._take(document, peer)
            except AtelierError as refused:  # it holds up nothing else
                self._refuse(document, peer, refused)

    def _refuse(self, document: Json, peer: str, error: AtelierError) -> None:
        """Put what is never taken into the audit log, once, or that something is damaged here."""
        if is_damage_here(error, peer):
            self._audit.complain(str(error))
            return
        digest = hashlib.sha256(canonical(document)).hexdigest()
        if (not isinstance(error, NotTaken) or error.when == "never") and digest not in self._refused:
            self._refused.add(digest)
            self._audit.add("refused", who=peer, why=str(error))

    def decide(self) -> None:
        """Decide the rounds that this site may while its own ranks are silent, who look at contributions as
        well; not the first of a branch, whose log the trunk has. Raises the first error, after all.
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
        if coordinator is None or coordinator.rounds != rounds:  # the ranks have begun anew
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
        """Whether a site was heard of within the grace of a training, as far as `decide` has looked."""
        coordinator = self._coordinators.get(trajectory)
        return coordinator is not None and coordinator.hears(site)

    # both

    def _elastic(self, peer: str) -> Iterator[AboutTraining]:
        """The trainings with a peer whose membership is elastic."""
        for about in self._incoming.trainings(peer):
            if about.rounds is not None:
                yield about

    def _said(self, about: AboutTraining, peer: str, after: int, told: Presence | None) -> Iterator[Said]:
        """What this site has to say to a peer of a training: that it is there where that is another than what
        it `told` last, and, where it decides, decisions of rounds after `after`.
        """
        meeting = Meeting(Mailbox(self._url, about.trajectory))
        presence, is_deciding = meeting.presence(self._site), _coordinator(about) == self._site
        if presence is not None and is_deciding:
            theirs = meeting.heard(peer)
            if theirs is not None and theirs.round < presence.round:
                oldest = meeting.oldest(presence)
                if theirs.round < oldest:  # it has lost what it knew
                    presence = presence.model_copy(update={"oldest": oldest})
        if presence is not None and presence != told:
            yield presence  # first: decisions that are too early for the peer hold up the rest
        if is_deciding:
            yield from meeting.decided(after)

    def _take(self, document: dict[str, Json], peer: str) -> None:
        """Keep what a peer says. Raises NotTaken for what is not its to say."""
        if document.get("kind") == "decision":
            self._take_decision(check_as(Decision, document, peer, WHAT), peer)
            return
        said = check_as(Presence, document, peer, WHAT)
        about = self._incoming.about(said.trajectory, said.site, peer)
        if about.rounds is None:
            raise NotTaken(f"all sites are in every round of {said.trajectory[:16]}")
        Meeting(Mailbox(self._url, said.trajectory)).tell(said)

    def _take_decision(self, decision: Decision, peer: str) -> None:
        about, number = self._incoming.about(decision.trajectory, decision.site, peer), decision.line.round
        if about.rounds is None or about.rounds.coordinator != peer:
            raise NotTaken(_not_the_coordinator(about, peer))
        meeting = Meeting(Mailbox(self._url, decision.trajectory))
        check_who(decision.line, about.rounds)
        there, last = meeting.decision(number), meeting.last()
        if there is not None:
            if there != decision:
                raise NotTaken(f"another decision of round {number} is here")
            self._note("received", peer, decision)  # this agent may have been killed before it did
            return
        if last is None:  # none is here, or none any more
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
        self._note("received", peer, decision)

    def _note(self, what: str, peer: str, said: Said, why: str = "") -> None:
        """A line of the audit log; that a site is there has none."""
        if isinstance(said, Decision):
            about: dict[str, Json] = {
                "kind": said.kind,
                "trajectory": said.trajectory[:16],
                "round": said.line.round,
                "sites": [*said.line.sha256],
                "sha256": said.line.digest,
            }
            if what != "not taken":
                self._audit.add_once(what, peer, **about)
            else:
                self._audit.add(what, who=peer, **about, **({"why": why} if why else {}))


def _coordinator(about: AboutTraining) -> str:
    """The site that decides who is in a round; '' where all are."""
    return about.rounds.coordinator if about.rounds is not None else ""


def _document(said: Said) -> dict[str, Json]:
    return said.model_dump(mode="json", by_alias=True, exclude_none=True)


def _not_the_coordinator(about: AboutTraining, peer: str) -> str:
    rounds = about.rounds
    if rounds is None:
        return f"all sites are in every round of {about.trajectory[:16]}"
    if rounds.coordinator == ANY:
        return "train.link.membership.coordinator=any is for one mailbox without agents; name a site"
    return f"{rounds.coordinator} decides who is in a round of {about.trajectory[:16]}, not {peer}"
