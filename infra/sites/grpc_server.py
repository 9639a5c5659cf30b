"""Answer calls over gRPC: one port, mutual TLS. The caller's certificate is looked up at every call."""

import resource
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import grpc

from atelier.engine.config.error import AtelierError, ConfigError
from atelier.infra.sites import channels
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.exchange import CALLS, SiteExchange
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.refusals import ending
from atelier.infra.sites.sealed import other_version
from atelier.infra.sites.transfer import AT_ONCE, FORMER, SERVICE, THREADS, CallError

HANDSHAKE = ("grpc.server_handshake_timeout_ms", 20_000)  # idle connections are closed after it


class GrpcServer(grpc.GenericRpcHandler):
    """Answers the calls of an exchange for the site of `keys`."""

    def __init__(
        self, keys: Keys, audit: Audit, exchange: SiteExchange, options: Sequence[tuple[str, int | str]]
    ) -> None:
        self._keys, self._audit, self._exchange = keys, audit, exchange
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="agent")
        self._server = grpc.server(self._threads, options=[*options, *channels.ALIVE, HANDSHAKE])
        self._going_on, self._lock = Counter[str](), threading.Lock()  # calls by peer
        self._server.add_generic_rpc_handlers((self,))

    def serve(self, address: str) -> int:
        """Listen at `address` (host:port, port 0 = any) and return the port. Raises ConfigError if in use."""
        credentials = grpc.dynamic_ssl_server_credentials(
            self._certificates(), self._certificates, require_client_authentication=True
        )
        try:
            port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise ConfigError(
                "site serve", f"cannot listen at {address}", "give another port, or 0 for any"
            ) from None
        _allow_descriptors()
        self._server.start()
        return port

    def stop(self) -> None:
        """End all calls and wait for their threads."""
        self._server.stop(1.0).wait()
        self._threads.shutdown()

    def _certificates(self) -> Any:
        """The current key, certificate and peers' certificates, for a new connection."""
        card, key = self._keys.pair
        trusted = "".join(peer.certificate for peer in self._keys.peers.values()) or card.certificate
        return grpc.ssl_server_certificate_configuration(
            [(key, card.certificate.encode())], root_certificates=trusted.encode()
        )

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Handle all requests as streams: gRPC reads a unary request before it calls the handler, which
        judges and counts the caller. On the wire both are equal.
        """
        service, _, call = details.method.strip("/").partition("/")
        if service not in (SERVICE, FORMER) or (service == SERVICE and call not in CALLS):
            return None
        return grpc.stream_stream_rpc_method_handler(partial(self._answers, call, service == FORMER))

    def _caller(self, context: grpc.ServicerContext) -> str:
        """The trusted site that calls. Raises CallError for any other."""
        shown: Any = context.auth_context().get("x509_pem_cert")  # a list of PEMs, which its types do not say
        try:
            peer = self._keys.peer_of(shown[0].decode()) if shown else ""
        except AtelierError:
            peer = ""
        if not peer:
            self._audit.add("refused", who=context.peer(), why="its certificate is not trusted")
            raise CallError(grpc.StatusCode.PERMISSION_DENIED, "this certificate is not trusted here")
        if problem := self._keys.peer(peer).out_of_time:  # TLS checks only when a connection is made
            self._audit.add("refused", who=peer, why=problem)
            raise CallError(grpc.StatusCode.PERMISSION_DENIED, problem)
        return peer

    @contextmanager
    def _counted(self, peer: str) -> Iterator[None]:
        """Count a call of a peer while it lasts. Raises CallError if there are too many."""
        with self._lock:
            self._going_on[peer] += 1
            is_too_many = self._going_on[peer] > AT_ONCE
        try:
            if is_too_many:
                text = f"{AT_ONCE} calls of {peer} are answered already"
                raise CallError(grpc.StatusCode.ABORTED, text)
            yield
        finally:
            with self._lock:
                self._going_on[peer] -= 1

    def _answers(
        self, call: str, is_former: bool, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Answer a call. An error ends it with its status code."""
        peer = context.peer()
        try:
            peer = self._caller(context)
            if is_former:
                raise CallError(grpc.StatusCode.UNIMPLEMENTED, other_version(peer))
            with self._counted(peer):
                yield from self._exchange.answer(call, requests, peer)
        except grpc.RpcError as error:
            if not isinstance(error, CallError):  # the caller is gone
                raise
            context.abort(error.code(), error.details())
        except Exception as error:  # gRPC would send its whole text to the peer
            found = ending(error, peer, self._audit)
            context.abort(found.code(), found.details())


def _allow_descriptors() -> None:
    """Raise the limit of file descriptors: each connection, even of a stranger, has one for `HANDSHAKE`."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # no limit at all is refused by some systems
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
