"""The agent of a site: it alone has the keys, and the port or the bucket where others reach it. It carries
messages between this site's mailbox and those of its peers; a peer's certificate is looked up at every call.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import grpc

from atelier.engine.config.error import AtelierError, DamageError
from atelier.engine.config.site_name import NOBODY
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.bucket_calls import Calls
from atelier.infra.sites.bucket_server import BucketServer
from atelier.infra.sites.channels import Channels, bucket_of
from atelier.infra.sites.countersign import Countersigning
from atelier.infra.sites.exchange import SiteExchange
from atelier.infra.sites.file_items import Files
from atelier.infra.sites.grpc_server import GrpcServer
from atelier.infra.sites.hourly import Hourly
from atelier.infra.sites.incoming import Incoming
from atelier.infra.sites.keys import AUDIT, Keys
from atelier.infra.sites.loops import Loops, RepeatedJob
from atelier.infra.sites.meetings import Meetings
from atelier.infra.sites.messages import Messages
from atelier.infra.sites.notes import Notes
from atelier.infra.sites.peer_problems import PeerProblems
from atelier.infra.sites.policy import Policies
from atelier.infra.sites.progress import ProgressItems
from atelier.infra.sites.refusals import Refusals
from atelier.infra.sites.transfer import PeerLink, code_of, reason

GRACE_S = 5.0  # for what is on its way when the agent is to end
BUSY_S = 1.0  # that something is on its way until notes are carried beside it, and between two looks for them
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0)]
ALL, ROUNDS, NOTES = (
    ("message", "progress", "note", "file"),
    ("meeting",),
    ("note",),
)  # kinds carried together


class Agent:
    """The agent of the site of `keys`, for the mailbox folder `mailbox`."""

    def __init__(self, keys: Keys, mailbox: str) -> None:
        self.keys, self.site = keys, keys.card.site
        self._audit = audit = Audit(keys.folder / AUDIT)
        self._hourly, self._refusals = Hourly(keys.folder, audit), Refusals()
        incoming, trusted = Incoming(mailbox, self.site), self._is_trusted
        messages = Messages(incoming, audit, trusted)
        self._meetings, self._signing = (
            Meetings(incoming, audit),
            Countersigning(keys, audit),
        )
        kinds = (
            messages,
            ProgressItems(incoming, audit, messages.begins_anew),
            Notes(mailbox, self.site, audit, Policies(keys.folder).runs_any),
            Files(mailbox, self.site, audit, trusted),
            self._meetings,
            self._signing,
        )
        self._exchange = SiteExchange(kinds, audit, self._hourly, self._refusals)
        calls = Calls(keys)
        # what is done with a peer breaks off none of the rest: each has connections of its own
        self._channels, self._for_rounds, self._for_notes = (
            Channels(keys, OPTIONS, calls, self._put_in, lane) for lane in range(3)
        )
        self._told_here, self._problems = PeerProblems(mailbox), dict[str, str]()  # by peer
        self._busy_since: dict[str, float] = {}  # by peer: carrying what it and this site have for each other
        self._passed: dict[str, float] = {}  # when notes were carried beside that, by peer
        self._server: GrpcServer | None = None
        self._buckets: dict[str, BucketServer] = {}  # by URL
        self._is_stopped, self._lock = False, threading.Lock()  # around both

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
        self._server = GrpcServer(self.keys, self._audit, self._exchange, OPTIONS)
        return self._server.serve(address)

    def serve_in(self, url: str) -> None:
        """Answer in the bucket `url`, without a port. Raises BucketError."""
        server = BucketServer(self.keys, self._audit, self._exchange, url)
        server.start()
        with self._lock:
            if not self._is_stopped:
                self._buckets[url] = server
                return
        server.stop()

    def _wanted_buckets(self) -> set[str]:
        """This site's bucket, or where it has no address those of its peers."""
        own = self.keys.card
        cards = [own] if own.address else self.keys.peers.values()
        return {bucket_of(card, own) for card in cards} - {""}

    def bucket_jobs(self) -> list[RepeatedJob]:
        """A job for each bucket: one that is dead, or hangs, stops the answers in no other."""
        urls = self._wanted_buckets()
        with self._lock:
            urls |= {*self._buckets}
        return [RepeatedJob(f"the bucket {url}", partial(self._check_bucket, url), "goes on") for url in urls]

    def _check_bucket(self, url: str) -> None:
        """Answer in a bucket as long as it is wanted. Raises BucketError for what is wrong with it."""
        is_wanted = url in self._wanted_buckets()
        with self._lock:
            server = self._buckets.get(url) if is_wanted else self._buckets.pop(url, None)
        if server is None and is_wanted:
            self.serve_in(url)
        elif server is not None and is_wanted:
            server.check()
        elif server is not None:
            server.stop()

    def stop(self) -> None:
        """Answer no more, and break off what is asked."""
        self._break_off()
        with self._lock:
            self._is_stopped = True
            servers = (self._server, *self._buckets.values())
        for server in servers:
            if server is not None:
                server.stop()

    def _break_off(self) -> None:
        for channels in (self._channels, self._for_rounds, self._for_notes):
            channels.close()

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
        works += self.bucket_jobs()
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
        self._cross(self._for_rounds, peer, ROUNDS)

    def pass_notes(self, peer: str) -> None:
        """Carry notes of orders to and from a peer while something large is on its way to or from it: a plan,
        a reply and a cancellation wait for no weights. Nothing where the peer has no address.
        """
        now = time.monotonic()
        is_busy = now - self._busy_since.get(peer, now) > BUSY_S
        if is_busy and now - self._passed.get(peer, 0.0) >= BUSY_S:
            self._passed[peer] = now
            self._cross(self._for_notes, peer, NOTES)

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
        self._cross(self._channels, peer, ALL, self._sign)

    def _cross(
        self, channels: Channels, peer: str, kinds: tuple[str, ...], *more: Callable[[PeerLink, str], None]
    ) -> None:
        """Carry items of some kinds to and from a peer, then do `more`. Raises the first error, after all."""
        own, card = self.keys.card, self.keys.peer(peer)
        if not (card.address or bucket_of(card, own)):
            return
        found = [self._exchange.kinds[name] for name in kinds]
        steps = [partial(self._exchange.send, kind=kind) for kind in found]
        if not own.address and not card.is_in_bucket:  # otherwise the peer sends by itself
            steps += [partial(self._exchange.fetch, kind=kind) for kind in found]
        problems: list[Exception] = []
        for step in (*steps, *more):  # one that the peer refuses, or does not know, holds up no other
            card = self.keys.peer(peer)  # who is revoked meanwhile gets nothing more
            try:
                step(channels.of(card), peer)
            except (AtelierError, OSError, grpc.RpcError) as error:
                problems.append(error)
                _drop_hanging(channels, peer, error)
        if problems:
            raise problems[0]

    def _sign(self, link: PeerLink, peer: str) -> None:
        self._signing.ask_if_due(partial(self._exchange.ask, link, peer, self._signing), peer)


def _drop_hanging(channels: Channels, peer: str, error: Exception) -> None:
    """Close a connection at whose other end nobody may be; what breaks otherwise gRPC makes anew by itself,
    with patience.
    """
    if isinstance(error, grpc.RpcError) and code_of(error) == grpc.StatusCode.DEADLINE_EXCEEDED:
        channels.drop(peer)
