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

from atelier.engine.config.base import Json
from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.sites import desk, notes
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.channels import Channels
from atelier.infra.sites.file_calls import FileCalls
from atelier.infra.sites.files import Files
from atelier.infra.sites.incoming import NotTaken
from atelier.infra.sites.keys import AUDIT, Keys
from atelier.infra.sites.message_calls import MessageCalls
from atelier.infra.sites.notes import Notes
from atelier.infra.sites.transfer import TIMEOUT_S, is_settled, reason

SERVICE = "atelier.Site"
LOOK_EVERY = 0.2  # seconds
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.so_reuseport", 0)]


class Agent:
    """The agent of the site of `keys`, for the mailbox folder `mailbox`."""

    def __init__(self, keys: Keys, mailbox: str) -> None:
        self.keys, self.site, self._mailbox = keys, keys.card.site, mailbox
        self._notes = Notes(mailbox, self.site)
        self._audit = Audit(keys.folder / AUDIT)
        self._told: dict[str, set[str]] = {}  # digests of notes by peer
        self._refused: dict[str, set[str]] = {}  # the same, of those that it sent
        self._has_files: dict[str, set[str]] = {}  # heads of files by peer
        self._messages = MessageCalls(mailbox, self.site, self._audit, self._is_trusted, SERVICE)
        self._files = FileCalls(Files(mailbox, self.site), self._audit, self._is_trusted, SERVICE)
        self._channels = Channels(keys, OPTIONS)
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
            "Hear": grpc.unary_unary_rpc_method_handler(self._hear),
            "Progress": grpc.unary_unary_rpc_method_handler(self._progress),
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
        self._channels.close()
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
        return self._answered(context, peer, lambda: self._messages.offer(request, peer))

    def _put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._messages.put(requests, peer))

    def _heads(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._messages.heads(request, peer))

    def _get(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        peer = self._caller(context)
        yield from self._streamed(context, self._messages.get(request, peer))

    def _hear(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._messages.hear(request, peer))

    def _progress(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._caller(context)
        return self._answered(context, peer, lambda: self._messages.progress(peer))

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
        yield from self._streamed(context, self._files.get(request, peer))

    def _streamed(self, context: grpc.ServicerContext, blocks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from blocks
        except NotTaken as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        except AtelierError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

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
        channel, is_called = self._channels.of(card), bool(self.keys.card.address)  # it sends by itself
        parts: list[Callable[[], None]] = [
            lambda: self._messages.send(channel, peer),
            lambda: None if is_called else self._messages.fetch(channel, peer),
            lambda: self._messages.tell(channel, peer),
            lambda: None if is_called else self._messages.ask(channel, peer),
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
            self._channels.drop(peer)
            raise problems[0]

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
