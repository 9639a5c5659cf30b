"""The agent of a site: it alone has the port and the keys. It carries messages between this site's mailbox
and those of its peers, over mutual TLS; a peer's certificate is looked up at every call.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc

from atelier.engine.config.base import Json, Spec
from atelier.engine.config.document import parse_as, parse_object
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.engine.io.storage import local_path
from atelier.engine.link.mailbox import BODY, Contribution, Mailbox
from atelier.infra.sites import desk, notes
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.file_calls import FileCalls
from atelier.infra.sites.files import Files
from atelier.infra.sites.incoming import Incoming, NotTaken
from atelier.infra.sites.keys import AUDIT, Keys
from atelier.infra.sites.notes import Notes
from atelier.infra.sites.transfer import BLOCK, TIMEOUT_S, is_settled, patience, reason

SERVICE = "atelier.Site"
LOOK_EVERY = 0.2  # seconds
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0)]


class AskedBytes(Spec):
    """Which bytes of a message are asked for."""

    trajectory: str
    round: int
    offset: int


class Agent:
    """The agent of the site of `keys`, for the mailbox folder `mailbox`."""

    def __init__(self, keys: Keys, mailbox: str) -> None:
        self.keys, self.site, self._mailbox = keys, keys.card.site, mailbox
        self._incoming = Incoming(mailbox, self.site)
        self._notes = Notes(mailbox, self.site)
        self._audit = Audit(keys.folder / AUDIT)
        self._delivered: set[tuple[str, str, int, str]] = set()  # peer, trajectory, round, digest
        self._told: dict[str, set[str]] = {}  # digests of notes by peer
        self._refused: dict[str, set[str]] = {}  # the same, of those that it sent
        self._has_files: dict[str, set[str]] = {}  # heads of files by peer
        self._files = FileCalls(Files(mailbox, self.site), self._audit, self._is_trusted, SERVICE)
        self._said: dict[str, str] = {}  # the last problem with each peer
        self._server: grpc.Server | None = None

    def _is_trusted(self, peer: str) -> bool:
        return peer in self.keys.peers

    # what others ask

    def serve(self, address: str) -> int:
        """Listen at `address` (host:port, port 0 = any); returns the port. Raises ConfigError when it is in
        use.
        """
        methods = {
            "Offer": grpc.unary_unary_rpc_method_handler(self._offer),
            "Put": grpc.stream_unary_rpc_method_handler(self._put),
            "Heads": grpc.unary_unary_rpc_method_handler(self._heads),
            "Get": grpc.unary_stream_rpc_method_handler(self._get),
            "OfferFile": grpc.unary_unary_rpc_method_handler(self._offer_file),
            "PutFile": grpc.stream_unary_rpc_method_handler(self._put_file),
            "FileHeads": grpc.unary_unary_rpc_method_handler(self._file_heads),
            "GetFile": grpc.unary_stream_rpc_method_handler(self._get_file),
            "Tell": grpc.unary_unary_rpc_method_handler(self._tell),
            "Ask": grpc.unary_unary_rpc_method_handler(self._ask),
        }
        self._server = grpc.server(ThreadPoolExecutor(8, thread_name_prefix="agent"), options=OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        credentials = grpc.dynamic_ssl_server_credentials(
            self._certificates(), self._certificates, require_client_authentication=True
        )
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ConfigError(
                "site serve", f"{address} cannot be listened at", "another port, or 0"
            ) from None
        self._server.start()
        return port

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(1.0).wait()

    def _certificates(self) -> Any:
        """Key, certificate and the peers' certificates as they are now, for a new connection."""
        card = self.keys.card
        trusted = "".join(peer.certificate for peer in self.keys.peers.values()) or card.certificate
        return grpc.ssl_server_certificate_configuration(
            [(self.keys.key, card.certificate.encode())], root_certificates=trusted.encode()
        )

    def _caller(self, context: grpc.ServicerContext) -> str:
        """The trusted site that calls; ends the call of any other."""
        shown: Any = context.auth_context().get("x509_pem_cert")  # a list of PEMs, which its types do not say
        try:
            peer = self.keys.peer_of(shown[0].decode()) if shown else ""
        except AtelierError:
            peer = ""
        if not peer:
            self._audit.add("refused", who=context.peer(), why="its certificate is not trusted")
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "this certificate is not trusted here")
        return peer

    def _answered(self, context: grpc.ServicerContext, peer: str, work: Callable[[], Json]) -> bytes:
        """The result of `work` as JSON; what it refuses ends the call with the reason."""
        try:
            return json.dumps(work()).encode()
        except NotTaken as refused:
            if refused.when == "never":
                self._audit.add("refused", who=peer, why=str(refused))
            is_early = refused.when == "early"
            code = grpc.StatusCode.ABORTED if is_early else grpc.StatusCode.FAILED_PRECONDITION
            context.abort(code, str(refused))
        except AtelierError as error:
            self._audit.add("refused", who=peer, why=str(error))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError  # abort raises

    def _offer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(
            context, peer, lambda: {"offset": self._incoming.offset(head_of(request, peer), peer)}
        )

    def _put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)

        def work() -> dict[str, Json]:
            about = parse_object(next(requests, b"{}"), peer, "the begin of a message")
            offset = about.pop("offset", None)
            head = head_of(json.dumps(about).encode(), peer)
            if not isinstance(offset, int):
                raise NotTaken("without its offset")
            self._incoming.take(head, peer, offset, requests, lambda: peer in self.keys.peers)
            self._audit.add("received", who=peer, **told(head))
            return {}

        return self._answered(context, peer, work)

    def _heads(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)

        def work() -> dict[str, Json]:
            found = [
                head.model_dump(mode="json", by_alias=True)
                for about in self._incoming.trainings(peer)
                for head in Mailbox(self._mailbox, about.trajectory).sent(self.site)
            ]
            return {"heads": found[-1000:]}

        return self._answered(context, peer, work)

    def _get(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        peer = self._caller(context)
        try:
            asked = parse_as(AskedBytes, request, peer, "a request")
        except AtelierError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from None  # abort raises
        for about in self._incoming.trainings(peer):
            if about.trajectory == asked.trajectory:
                box = Mailbox(self._mailbox, about.trajectory)
                if (head := box.contribution(asked.round, self.site)) is not None:
                    yield from self._blocks(box, head, asked.offset)
                    self._audit.add("fetched", who=peer, **told(head))
                    return
        context.abort(grpc.StatusCode.NOT_FOUND, "no such message")

    def _blocks(self, box: Mailbox, head: Contribution, offset: int) -> Iterator[bytes]:
        with (local_path(box.folder(head.round, head.site)) / BODY).open("rb") as file:
            file.seek(offset)
            yield from iter(lambda: file.read(BLOCK), b"")

    def _tell(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)

        def work() -> dict[str, Json]:
            note = self._notes.take(request, peer)
            self._audit.add("received", who=peer, **notes.told(note))
            return {}

        return self._answered(context, peer, work)

    def _ask(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)

        def work() -> list[Json]:
            found = self._notes.asked(request, peer)[:1]  # one fits into an answer
            for note in found:
                self._audit.add("fetched", who=peer, **notes.told(note))
            return [desk.text_of(note).decode() for note in found]

        return self._answered(context, peer, work)

    def _offer_file(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._files.offer(request, peer))

    def _put_file(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._files.put(requests, peer))

    def _file_heads(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._files.heads(peer))

    def _get_file(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        peer = self._caller(context)
        try:
            yield from self._files.get(request, peer)
        except AtelierError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    # what it asks

    def run(self, stop: threading.Event, say: Callable[[str], None]) -> None:
        """Carry messages to and from the peers that have an address, until `stop` is set. What goes wrong is
        said once and tried again.
        """
        while not stop.is_set():
            for peer in self._peers(say):
                try:
                    self.exchange(peer)
                    problem = ""
                except Exception as error:  # whatever a peer causes, the others are served
                    problem = f"{peer}: {reason(error)}"
                if problem != self._said.get(peer, ""):
                    self._said[peer] = problem
                    say(problem or f"{peer}: answers")
            stop.wait(LOOK_EVERY)

    def _peers(self, say: Callable[[str], None]) -> list[str]:
        try:
            return list(self.keys.peers)
        except (AtelierError, OSError) as error:
            say(str(error))
            return []

    def exchange(self, peer: str) -> None:
        """Send a peer what it lacks, and where it cannot call this site fetch what it has for it; nothing
        where the peer has no address. Raises RpcError and AtelierError.
        """
        card = self.keys.peers[peer]
        if not card.address:
            return
        credentials = grpc.ssl_channel_credentials(
            card.certificate.encode(), self.keys.key, self.keys.card.certificate.encode()
        )
        options = [*OPTIONS, ("grpc.ssl_target_name_override", peer)]
        with grpc.secure_channel(card.address, credentials, options) as channel:
            is_called = bool(self.keys.card.address)  # the peer sends by itself
            parts: list[Callable[[], None]] = [
                lambda: self._send_messages(channel, peer),
                lambda: None if is_called else self._fetch_messages(channel, peer),
                lambda: self._tell_news(channel, peer),
                lambda: None if is_called else self._hear_news(channel, peer),
                lambda: self._files.send(channel, peer, self._has_files.setdefault(peer, set())),
                lambda: None if is_called else self._files.fetch(channel, peer),
            ]
            problems: list[Exception] = []
            for part in parts:  # one that the peer refuses, or does not know, holds up no other
                try:
                    part()
                except (AtelierError, grpc.RpcError) as error:
                    problems.append(error)
            if problems:
                raise problems[0]

    def _send_messages(self, channel: grpc.Channel, peer: str) -> None:
        for about in self._incoming.trainings(peer):
            box = Mailbox(self._mailbox, about.trajectory)
            for head in box.sent(self.site):
                is_new = (peer, head.trajectory, head.round, head.body.sha256) not in self._delivered
                if is_new and not self._deliver(channel, peer, box, head):
                    break  # later rounds are too early as well

    def _fetch_messages(self, channel: grpc.Channel, peer: str) -> None:
        answer = channel.unary_unary(f"/{SERVICE}/Heads")(b"{}", timeout=TIMEOUT_S)
        heads = parse_object(answer, peer, "the heads of messages").get("heads")
        early: set[str] = set()  # trainings of which later rounds are too early as well
        for found in heads if isinstance(heads, list) else ():
            head = head_of(json.dumps(found).encode(), peer)
            if head.trajectory not in early and not self._fetch(channel, peer, head):
                early.add(head.trajectory)

    def _tell_news(self, channel: grpc.Channel, peer: str) -> None:
        """Send a peer the notes that are new."""
        known = self._told.setdefault(peer, set())
        for note in self._notes.waiting_for(peer, known):
            about = notes.told(note)

            def send(text: bytes = desk.text_of(note), about: dict[str, Json] = about) -> None:
                channel.unary_unary(f"/{SERVICE}/Tell")(text, timeout=TIMEOUT_S)
                self._audit.add("sent", who=peer, **about)

            if is_settled(send, partial(self._not_taken, peer, about)):
                known.add(desk.digest_of(note))

    def _not_taken(self, peer: str, about: dict[str, Json], why: str) -> None:
        self._audit.add("not taken", who=peer, why=why, **about)

    def _hear_news(self, channel: grpc.Channel, peer: str) -> None:
        """Fetch the notes that a peer has for this site, which it cannot call."""
        refused = self._refused.setdefault(peer, set())
        request = self._notes.request(peer, refused)
        answer = channel.unary_unary(f"/{SERVICE}/Ask")(request, timeout=TIMEOUT_S)
        for text in notes.listed(answer, peer):
            try:
                note = self._notes.take(text, peer)
                self._audit.add("received", who=peer, **notes.told(note))
            except AtelierError as error:
                refused.add(hashlib.sha256(text).hexdigest())
                self._audit.add("refused", who=peer, why=str(error))

    def _deliver(self, channel: grpc.Channel, peer: str, box: Mailbox, head: Contribution) -> bool:
        """Send a message, unless the peer does not take it: never, which holds up no other, or not yet, for
        which it is False.
        """
        refused = partial(self._not_taken, peer, told(head))
        if not is_settled(lambda: self._send(channel, peer, box, head), refused):
            return False
        self._delivered.add((peer, head.trajectory, head.round, head.body.sha256))
        return True

    def _send(self, channel: grpc.Channel, peer: str, box: Mailbox, head: Contribution) -> None:
        answer = channel.unary_unary(f"/{SERVICE}/Offer")(head.text, timeout=TIMEOUT_S)
        offset = parse_object(answer, peer, "an answer").get("offset")
        if isinstance(offset, int):
            about = json.dumps(json.loads(head.text) | {"offset": offset}).encode()

            def parts() -> Iterator[bytes]:
                yield about
                yield from self._blocks(box, head, offset)

            channel.stream_unary(f"/{SERVICE}/Put")(parts(), timeout=patience(head.body.bytes))
            self._audit.add("sent", who=peer, **told(head))

    def _fetch(self, channel: grpc.Channel, peer: str, head: Contribution) -> bool:
        """Fetch a message, unless it is here or over; False when it is too early for it."""
        try:
            offset = self._incoming.offset(head, peer)
        except NotTaken as refused:
            if refused.when == "never":
                raise
            return refused.when != "early"
        if offset is None:
            return True
        asked = AskedBytes(trajectory=head.trajectory, round=head.round, offset=offset)
        ask = channel.unary_stream(f"/{SERVICE}/Get")
        blocks = ask(asked.model_dump_json().encode(), timeout=patience(head.body.bytes))
        self._incoming.take(head, peer, offset, blocks)
        self._audit.add("received", who=peer, **told(head))
        return True


def head_of(text: bytes, peer: str) -> Contribution:
    """The head of a message from `peer`. Raises DamageError for what is none."""
    return parse_as(Contribution, text, peer, "the head of a message")


def told(head: Contribution) -> dict[str, Json]:
    """What the audit log says of a message."""
    return {
        "kind": head.kind,
        "trajectory": head.trajectory[:16],
        "round": head.round,
        "bytes": head.body.bytes,
        "sha256": head.body.sha256,
    }
