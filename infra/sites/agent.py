"""The agent of a site: it alone has the keys, and the port or the bucket where others reach it. It carries
messages between this site's mailbox and those of its peers; a peer's certificate is looked up at every call.
"""

import hashlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice

import grpc

from atelier.engine.config.base import Json
from atelier.engine.config.document import parse_object
from atelier.engine.config.error import AtelierError, DamageError
from atelier.infra.sites import desk, notes
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.bucket_calls import Calls
from atelier.infra.sites.bucket_server import NOBODY, BucketServer
from atelier.infra.sites.channels import Channels
from atelier.infra.sites.countersign import Countersigning
from atelier.infra.sites.desk import Note, Reply
from atelier.infra.sites.file_calls import FileCalls
from atelier.infra.sites.files import Files
from atelier.infra.sites.grpc_server import GrpcServer
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.keys import AUDIT, Keys
from atelier.infra.sites.loops import Loops, RepeatedJob
from atelier.infra.sites.meeting_calls import MeetingCalls
from atelier.infra.sites.message_calls import MessageCalls
from atelier.infra.sites.methods import Method, StreamedIn, StreamedOut, Unary, is_damage_here
from atelier.infra.sites.notes import Notes, RefusedNotes
from atelier.infra.sites.peer_problems import PeerProblems
from atelier.infra.sites.policy import Policies
from atelier.infra.sites.progress_calls import ProgressCalls
from atelier.infra.sites.refusals import CompletedKeys, Refusals
from atelier.infra.sites.transfer import TIMEOUT_S, CallChannel, code_of, is_settled, reason

SERVICE = "atelier.Site"
MOST_NOTES = 8  # of an answer that are looked at; one is sent
GRACE_S = 5.0  # for what is on its way when the agent is to end
BUSY_S = 1.0  # that something is on its way until notes are carried beside it, and between two looks for them
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0)]


class Agent:
    """The agent of the site of `keys`, for the mailbox folder `mailbox`."""

    def __init__(self, keys: Keys, mailbox: str) -> None:
        self.keys, self.site = keys, keys.card.site
        self._notes = Notes(mailbox, self.site, Policies(keys.folder).runs_any)
        self._audit = Audit(keys.folder / AUDIT)
        self._told = defaultdict[str, CompletedKeys[str]](CompletedKeys)  # digests of notes by peer
        self._declined = defaultdict[str, RefusedNotes](RefusedNotes)  # the same, of those that it sent
        self._hourly = hourly = Hourly(keys.folder, self._audit)
        self._refusals = Refusals()
        shared = (self._audit, self._is_trusted, SERVICE, hourly, self._refusals)
        incoming = Incoming(mailbox, self.site)
        self._messages = MessageCalls(mailbox, self.site, incoming, *shared)
        self._progress = ProgressCalls(
            mailbox, self.site, incoming, self._audit, SERVICE, self._refusals, self._messages.begins_anew
        )
        self._files = FileCalls(Files(mailbox, self.site), *shared)
        self._meetings = MeetingCalls(mailbox, self.site, self._audit, SERVICE)
        self._signing = Countersigning(keys, self._audit, SERVICE)
        calls = Calls(keys)
        # what is done with a peer breaks off none of the rest: each has connections of its own
        self._channels, self._for_rounds, self._for_notes = (
            Channels(keys, OPTIONS, calls, self._put_in) for _ in range(3)
        )
        self._news: dict[str, threading.Lock] = {}  # by peer: whoever has it carries notes
        self._told_here, self._problems = PeerProblems(mailbox), dict[str, str]()  # by peer
        self._busy_since: dict[str, float] = {}  # by peer: carrying what it and this site have for each other
        self._passed: dict[str, float] = {}  # when notes were carried beside that, by peer
        self._server: GrpcServer | None = None
        self._bucket: BucketServer | None = None

    def _is_trusted(self, peer: str) -> bool:
        return peer in self.keys.peers

    def _put_in(self, why: str) -> None:
        """Note what lies in a bucket in the place of an answer."""
        self._audit.add("refused", who=NOBODY, why=f"an answer in the bucket {why}")

    # what others ask

    def serve(self, address: str) -> int:
        """Listen at `address` (host:port, port 0 = any); returns the port. Raises ConfigError when it is in
        use.
        """
        self._server = GrpcServer(self.keys, self._audit, SERVICE, self._methods(), OPTIONS)
        return self._server.serve(address)

    def serve_in(self, url: str) -> None:
        """Answer in the bucket `url`, without a port. Raises BucketError."""
        self._bucket = BucketServer(self.keys, self._audit, self._methods(), url)
        self._bucket.start()

    def stop(self) -> None:
        """Answer no more, and break off what is asked."""
        self._break_off()
        for server in (self._server, self._bucket):
            if server is not None:
                server.stop()

    def _break_off(self) -> None:
        for channels in (self._channels, self._for_rounds, self._for_notes):
            channels.close()

    def _methods(self) -> dict[str, Method]:
        """What a peer may ask, by name."""
        return {
            "Offer": Unary(self._messages.offer),
            "Put": StreamedIn(self._messages.put),
            "Heads": Unary(self._messages.heads),
            "Get": StreamedOut(self._messages.get),
            "Hear": Unary(self._progress.hear),
            "Progress": Unary(self._progress.progress),
            "Meet": Unary(self._meetings.meet),
            "Met": Unary(self._meetings.met),
            "OfferFile": Unary(self._files.offer),
            "PutFile": StreamedIn(self._files.put),
            "FileHeads": Unary(self._files.heads),
            "GetFile": StreamedOut(self._files.get),
            "Tell": Unary(self._tell),
            "Ask": Unary(self._ask),
            "Sign": Unary(self._signing.answer),
        }

    def _note(self, what: str, peer: str, note: Note) -> None:
        """A line for a note that has crossed: of the replies to an order one for each state of its tasks."""
        if isinstance(note, Reply):
            self._audit.add_once(what, peer, **notes.told(note))
        else:
            self._audit.add(what, who=peer, **notes.told(note))

    def _tell(self, request: bytes, peer: str) -> Json:
        self._audit.check(peer, "reply")
        note = self._notes.take(request, peer)
        if note is not None:
            self._note("received", peer, note)
        elif (same := self._notes.same(request, peer)) is not None:
            # this agent may have been killed before it noted that
            self._audit.add_once("received", peer, **notes.told(same))
        return {"is_new": note is not None, "is_here": note is not None or same is not None}

    def _ask(self, request: bytes, peer: str) -> Json:
        found = [*islice(self._notes.asked(request, peer), 1)]  # one fits into an answer
        for note in found:
            self._audit.add_once("fetched", peer, **notes.told(note))
        return [note.model_dump(mode="json") for note in found]

    # what it asks

    def run(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Carry messages to and from the peers that have an address, until `stop` is set. What goes wrong is
        said once and tried again.
        """
        self._audit.on_damage = say
        loops = Loops(stop, say)
        loops.run(partial(self._works, say))
        if not loops.join(GRACE_S):  # a transfer that stalls is broken off, and goes on later
            self._break_off()
            loops.join(GRACE_S)
        with suppress(OSError):  # the folder is gone
            self._told_here.end()

    def _works(self, say: Callable[[str], None]) -> list[RepeatedJob]:
        """What is done now: with each peer three things that do not wait for each other."""
        works = [RepeatedJob("rounds here", self._meetings.decide)]  # no site is called so
        works.append(RepeatedJob("cards here", self._damaged_card))
        works.append(RepeatedJob("what runs here are told", self._tell_here))
        if self._bucket is not None:
            works.append(RepeatedJob("the bucket", self._bucket.check, "goes on"))
        peers = self.keys.peers
        for channels in (self._channels, self._for_rounds, self._for_notes):
            channels.keep(peers)
        for peer in peers:
            works.append(RepeatedJob(peer, partial(self._carry, peer, say), "answers"))
            works.append(RepeatedJob(f"rounds with {peer}", partial(self.meet, peer)))
            works.append(RepeatedJob(f"notes with {peer}", partial(self.pass_notes, peer)))
        return works

    def _tell_here(self) -> None:
        self._told_here.write({peer: self._problems.get(peer, "") for peer in self.keys.peers})

    def _damaged_card(self) -> str:
        """What is wrong with the card of a site that is trusted."""
        try:
            self.keys.check_cards()
        except DamageError as error:
            return f"{error}; {error.way_out}"
        return ""

    def meet(self, peer: str) -> None:
        """Tell a peer that this site is there and what is decided, and ask it where it cannot call; nothing
        where the peer has no address.
        """
        card = self.keys.peer(peer)
        if not card.address:
            return
        try:
            self._meetings.tell(self._for_rounds.of(card), peer)
            if not self.keys.card.address:
                self._meetings.ask(self._for_rounds.of(card), peer)
        except grpc.RpcError as error:
            _drop_hanging(self._for_rounds, peer, error)
            raise

    def pass_notes(self, peer: str) -> None:
        """Carry notes of orders to and from a peer while something large is on its way to or from it: a plan,
        a reply and a cancellation wait for no weights. Nothing where the peer has no address.
        """
        card, now = self.keys.peer(peer), time.monotonic()
        is_busy = now - self._busy_since.get(peer, now) > BUSY_S
        if not card.address or not is_busy or now - self._passed.get(peer, 0.0) < BUSY_S:
            return
        self._passed[peer] = now
        try:
            self._tell_news(self._for_notes.of(card), peer)
            if not self.keys.card.address:
                self._hear_news(self._for_notes.of(card), peer)
        except grpc.RpcError as error:
            _drop_hanging(self._for_notes, peer, error)
            raise

    def _carry(self, peer: str, say: Callable[[str], None]) -> str:
        """Exchange what a peer and this site have for each other; what is wrong with it."""
        self._busy_since[peer] = time.monotonic()
        try:
            self.exchange(peer)
            problem = f"{peer}: {waits}" if (waits := self._hourly.waits(peer)) else ""
        except Exception as error:  # whatever a peer causes, it is tried again
            problem = f"{peer}: {reason(error)}"
        finally:
            del self._busy_since[peer]
        self._problems[peer] = problem
        for line in self._refusals.lines(peer):
            say(line)
        return problem

    def exchange(self, peer: str) -> None:
        """Send a peer what it lacks, and where it cannot call this site fetch what it has for it; nothing
        where the peer has no address. Raises RpcError, AtelierError and OSError.
        """
        card = self.keys.peer(peer)
        if not card.address:
            return
        parts = [self._messages.send, self._progress.tell, self._tell_news, self._files.send]
        if not self.keys.card.address:  # otherwise the peer sends by itself
            parts += [self._messages.fetch, self._progress.ask, self._hear_news, self._files.fetch]
        parts.append(self._signing.ask_if_due)
        problems: list[Exception] = []
        for part in parts:  # one that the peer refuses, or does not know, holds up no other
            card = self.keys.peer(peer)  # who is revoked meanwhile gets nothing more
            try:
                part(self._channels.of(card), peer)
            except (AtelierError, OSError, grpc.RpcError) as error:
                problems.append(error)
                _drop_hanging(self._channels, peer, error)
        if problems:
            raise problems[0]

    def _tell_news(self, channel: CallChannel, peer: str) -> None:
        """Send a peer the notes that are new."""
        with self._news.setdefault(peer, threading.Lock()):
            known = self._told[peer]
            for note in self._notes.waiting_for(peer, known):
                about = notes.told(note)

                def send(note: Note = note, about: dict[str, Json] = about) -> None:
                    answer = channel.unary_unary(f"/{SERVICE}/Tell")(desk.text_of(note), timeout=TIMEOUT_S)
                    found = parse_object(answer, peer, "an answer")
                    if found.get("is_new", True):
                        self._note("sent", peer, note)
                    elif found.get("is_here"):  # this agent may have been killed before it noted that
                        self._audit.add_once("sent", peer, **about)

                key, what = f"{about['kind']} {about['order']}", f"the {about['kind']} {about['order']}"
                early = partial(self._refusals.early, peer, key, what)
                if is_settled(send, partial(self._not_taken, peer, about), early):
                    self._refusals.settled(peer, key)
                    known.add(desk.digest_of(note))

    def _not_taken(self, peer: str, about: dict[str, Json], error: grpc.RpcError) -> None:
        self._audit.add("not taken", who=peer, why=reason(error), **about)
        self._refusals.never(peer, f"the {about['kind']} {about['order']}", error)

    def _hear_news(self, channel: CallChannel, peer: str) -> None:
        """Fetch the notes that a peer has for this site, which it cannot call."""
        with self._news.setdefault(peer, threading.Lock()):
            declined = self._declined[peer]
            request = self._notes.request(peer, declined)
            answer = channel.unary_unary(f"/{SERVICE}/Ask")(request, timeout=TIMEOUT_S)
            heard = notes.listed(answer, peer)[:MOST_NOTES]
            for text in heard:
                if hashlib.sha256(text).hexdigest() not in declined:
                    self._hear_note(text, peer, declined)
            if not heard:
                declined.heard_all()

    def _hear_note(self, text: bytes, peer: str, declined: RefusedNotes) -> None:
        """Take a note, or decline it: for good, or until later what this site's own state keeps out."""
        digest = hashlib.sha256(text).hexdigest()
        try:
            note = self._notes.take(text, peer)
        except (AtelierError, OSError) as error:
            if _is_final(error, peer):
                declined.never(digest)
                self._audit.add("refused", who=peer, why=str(error))
            else:
                declined.early(digest)
                self._not_yet(notes.read_note(text, peer), peer, error)
            return
        if note is not None:
            self._note("received", peer, note)
            self._refusals.settled(peer, f"heard {_named(note)}")

    def _not_yet(self, note: Note, peer: str, error: Exception) -> None:
        """Say what keeps out a note that this site has heard."""
        if isinstance(error, DamageError):
            self._audit.complain(str(error))
        self._refusals.early(peer, f"heard {_named(note)}", _named(note), error, is_here=True)


def _drop_hanging(channels: Channels, peer: str, error: Exception) -> None:
    """Close a connection at whose other end nobody may be; what breaks otherwise gRPC makes anew by itself,
    with patience.
    """
    if isinstance(error, grpc.RpcError) and code_of(error) == grpc.StatusCode.DEADLINE_EXCEEDED:
        channels.drop(peer)


def _is_final(error: Exception, peer: str) -> bool:
    """Whether a note that `peer` has sent will never be taken: it is no fault of this site's own."""
    if isinstance(error, NotTaken):
        return error.when != "early"
    return isinstance(error, AtelierError) and not is_damage_here(error, peer)


def _named(note: Note) -> str:
    return f"the {note.kind} {desk.order_id(note)[:16]}"
