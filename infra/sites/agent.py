"""The agent of a site. Only it has the keys, and the port or bucket where peers reach it. It copies items
between this site's mailbox and those of its peers, and looks up a peer's certificate at every call.
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
from atelier.infra.sites.hourly import Hourly, SendLimit
from atelier.infra.sites.incoming import Incoming
from atelier.infra.sites.keys import AUDIT, Keys
from atelier.infra.sites.loops import Loops, RepeatedJob
from atelier.infra.sites.meetings import Meetings
from atelier.infra.sites.messages import Messages, ProgressItems
from atelier.infra.sites.notes import Notes
from atelier.infra.sites.peer_problems import PeerProblems
from atelier.infra.sites.policy import Policies
from atelier.infra.sites.refusals import Refusals
from atelier.infra.sites.transfer import PeerLink, code_of, reason

GRACE_S = 5.0  # for transfers in flight when the agent is to end
BUSY_S = 1.0  # of a transfer before notes are carried beside it, and between two looks for them
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0)]
ALL, ROUNDS, NOTES = (
    ("message", "progress", "note", "file"),
    ("meeting",),
    ("note",),
)  # kinds carried together


class Agent:
    """The agent of the site of `keys`, for the mailbox folder `mailbox`. `mbps`: most Mbit/s that it sends;
    0 = no limit.
    """

    def __init__(self, keys: Keys, mailbox: str, mbps: float = 0.0) -> None:
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
        self._exchange = SiteExchange(kinds, audit, self._hourly, self._refusals, SendLimit(mbps))
        calls = Calls(keys)
        # each thread of a peer has its own connection, so that one failure breaks off no other call
        self._channels, self._for_rounds, self._for_notes = (
            Channels(keys, OPTIONS, calls, self._put_in, lane) for lane in range(3)
        )
        self._told_here, self._problems = PeerProblems(mailbox), dict[str, str]()  # by peer
        self._busy_since: dict[str, float] = {}  # by peer: since when items are exchanged
        self._passed: dict[str, float] = {}  # by peer: when notes were carried beside that
        self._server: GrpcServer | None = None
        self._buckets: dict[str, BucketServer] = {}  # by URL
        self._is_stopped, self._lock = False, threading.Lock()  # around both

    def _is_trusted(self, peer: str) -> bool:
        return peer in self.keys.peers

    def _put_in(self, why: str) -> None:
        """Log a refused object in the place of an answer in a bucket."""
        self._audit.add("refused", who=NOBODY, why=f"an answer in the bucket {why}")

    # calls of peers

    def serve(self, address: str) -> int:
        """Listen at `address` (host:port, port 0 = any) and return the port. Raises ConfigError if it is in
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
        """This site's bucket; if it has no address, those of its peers."""
        own = self.keys.card
        cards = [own] if own.address else self.keys.peers.values()
        return {bucket_of(card, own) for card in cards} - {""}

    def bucket_jobs(self) -> list[RepeatedJob]:
        """A job for each bucket, so that one that is dead or hangs stops no other."""
        urls = self._wanted_buckets()
        with self._lock:
            urls |= {*self._buckets}
        return [
            RepeatedJob(f"the bucket {url}", partial(self._check_bucket, url), "works again") for url in urls
        ]

    def _check_bucket(self, url: str) -> None:
        """Answer in a bucket as long as it is wanted. Raises BucketError for problems with it."""
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
        """Stop answering, and break off own calls."""
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

    # own calls

    def run(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Exchange items with the peers that have an address, until `stop` is set. `say` gets each problem
        once; all is retried.
        """
        self._audit.on_damage = say
        loops = Loops(stop, say)
        loops.run(partial(self._works, say))
        if not loops.join(GRACE_S):  # a transfer that stalls is broken off, and resumes later
            self._break_off()
            loops.join(GRACE_S)
        with suppress(OSError):  # the folder is gone
            self._told_here.end()

    def _works(self, say: Callable[[str], None]) -> list[RepeatedJob]:
        """The current jobs; those of a peer (items, rounds, notes) do not wait for each other."""
        works = [RepeatedJob("rounds here", self._meetings.decide)]  # no site is called so
        works.append(RepeatedJob("cards here", self._damaged_card))
        works.append(RepeatedJob("status for runs here", self._tell_here))
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
        """The problem with the card of a trusted site; '' = none."""
        try:
            self.keys.check_cards()
        except DamageError as error:
            return f"{error}; {error.way_out}"
        return ""

    def meet(self, peer: str) -> None:
        """Exchange presences and decisions with a peer, if it has an address."""
        self._cross(self._for_rounds, peer, ROUNDS)

    def pass_notes(self, peer: str) -> None:
        """Exchange notes of orders with a peer during a large transfer, so that plans, replies and
        cancellations do not wait for weights. Only if the peer has an address.
        """
        now = time.monotonic()
        is_busy = now - self._busy_since.get(peer, now) > BUSY_S
        if is_busy and now - self._passed.get(peer, 0.0) >= BUSY_S:
            self._passed[peer] = now
            self._cross(self._for_notes, peer, NOTES)

    def _carry(self, peer: str, say: Callable[[str], None]) -> str:
        """Exchange items with a peer. Returns the problem; '' = none."""
        self._busy_since[peer] = time.monotonic()
        try:
            self.exchange(peer)
            problem = f"{peer}: {waits}" if (waits := self._hourly.waits(peer)) else ""
        except Exception as error:  # whatever a peer causes, it is retried
            problem = f"{peer}: {reason(error)}"
        finally:
            del self._busy_since[peer]
        self._problems[peer] = problem
        for line in self._refusals.lines(peer):
            say(line)
        return problem

    def exchange(self, peer: str) -> None:
        """Send a peer the items that it lacks and, if it cannot call this site, fetch its items. Only if the
        peer has an address. Raises RpcError, AtelierError and OSError.
        """
        self._cross(self._channels, peer, ALL, self._sign)

    def _cross(
        self, channels: Channels, peer: str, kinds: tuple[str, ...], *more: Callable[[PeerLink, str], None]
    ) -> None:
        """Exchange items of some kinds with a peer, then do `more`. Raises the first error, after all."""
        own, card = self.keys.card, self.keys.peer(peer)
        if not (card.address or bucket_of(card, own)):
            return
        found = [self._exchange.kinds[name] for name in kinds]
        steps = [partial(self._exchange.send, kind=kind) for kind in found]
        if not own.address and not card.is_in_bucket:  # otherwise the peer sends by itself
            steps += [partial(self._exchange.fetch, kind=kind) for kind in found]
        problems: list[Exception] = []
        for step in (*steps, *more):  # one that the peer refuses, or does not know, blocks no other
            card = self.keys.peer(peer)  # a peer that is revoked meanwhile gets nothing more
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
    """Close a connection after a timeout: the peer may be gone. gRPC repairs other failures by itself."""
    if isinstance(error, grpc.RpcError) and code_of(error) == grpc.StatusCode.DEADLINE_EXCEEDED:
        channels.drop(peer)
