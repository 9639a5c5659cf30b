"""Connections of an agent to its peers. Over mutual TLS there is one each, kept open between calls, since a
handshake takes more bytes than most items. A peer in a bucket needs no open connection.
"""

import threading
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain

import grpc

from atelier.infra.sites.bucket_calls import Calls
from atelier.infra.sites.bucket_link import BucketLink
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.sealed import other_version
from atelier.infra.sites.transfer import BLOCK, SERVICE, CallError, PeerLink, code_of

Option = tuple[str, int | str]
RECONNECT: list[Option] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 20_000),  # gRPC's default: how long a handshake may take
    ("grpc.max_reconnect_backoff_ms", 1000),
]

# Both sides of a call notice a peer that is gone or hangs; the transfer resumes over another connection. The
# timeouts are long because on a thin link a ping waits behind data sent before it.
ALIVE: list[Option] = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 120_000),
    ("grpc.http2.ping_timeout_ms", 120_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


class Channels:
    """The channels of the site of `keys`. One is reopened when its peer's card, or this site's, changes.
    `on_refused` gets the reasons of refused answers in a bucket.
    """

    def __init__(
        self,
        keys: Keys,
        options: Sequence[Option],
        calls: Calls,
        on_refused: Callable[[str], None],
        lane: int = 0,
    ) -> None:
        self._keys, self._options = keys, [*options, *RECONNECT, *ALIVE]
        self._calls, self._on_refused, self._lane = calls, on_refused, lane
        self._open: dict[str, tuple[tuple[str, str, str], PeerLink]] = {}
        self._is_closed = False
        self._lock = threading.Lock()  # guards both; channels are closed outside it

    def of(self, card: Card) -> PeerLink:
        """The channel to the peer of a card. Raises CallError if all were closed, or for a certificate that
        is not valid now.
        """
        if problem := card.out_of_time:
            self.drop(card.site)
            raise CallError(grpc.StatusCode.UNAUTHENTICATED, problem)
        own, key = self._keys.pair
        about = (card.address, card.digest, own.digest)
        with self._lock:
            if self._is_closed:
                raise CallError(grpc.StatusCode.CANCELLED, "this agent is stopping")
            found = self._open.get(card.site)
            if found is not None and found[0] == about:
                return found[1]
            channel = self._in_bucket(card, own) if bucket_of(card, own) else self._over_tls(card, own, key)
            self._open[card.site] = (about, channel)
        if found is not None:
            found[1].close()
        return channel

    def _in_bucket(self, card: Card, own: Card) -> PeerLink:
        return BucketLink(self._keys, card, bucket_of(card, own), self._calls, self._on_refused, self._lane)

    def _over_tls(self, card: Card, own: Card, key: bytes) -> PeerLink:
        credentials = grpc.ssl_channel_credentials(card.certificate.encode(), key, own.certificate.encode())
        options = [*self._options, ("grpc.ssl_target_name_override", card.tls_name)]
        return _OverTls(card.site, grpc.secure_channel(card.address, credentials, options))

    def drop(self, peer: str) -> None:
        """Close the channel to a peer, if there is one; its calls end."""
        with self._lock:
            found = self._open.pop(peer, None)
        if found is not None:
            found[1].close()

    def keep(self, peers: Container[str]) -> None:
        """Close the channels to all sites but `peers`."""
        for peer in [*self._open]:
            if peer not in peers:
                self.drop(peer)

    def close(self) -> None:
        """Close all channels and open no more."""
        with self._lock:
            self._is_closed = True
        self.keep(())


class _OverTls:
    """A gRPC channel. If another thread closes it, its calls fail with CallError."""

    block = BLOCK

    def __init__(self, peer: str, channel: grpc.Channel) -> None:
        self._peer, self._channel = peer, channel

    def ask(self, call: str, request: bytes, blocks: Iterable[bytes], timeout: float) -> bytes:
        with closing(self._answers(call, chain((request,), blocks), timeout)) as answers:
            return next(answers, b"")

    def get(self, request: bytes, timeout: float) -> Generator[bytes, None, None]:
        return self._answers("Get", iter((request,)), timeout)

    def close(self) -> None:
        self._channel.close()

    def _answers(self, call: str, requests: Iterator[bytes], timeout: float) -> Generator[bytes, None, None]:
        begun = None
        try:
            begun = self._channel.stream_stream(f"/{SERVICE}/{call}")(requests, timeout=timeout)
            yield from begun
        except ValueError as error:  # "on closed channel"
            raise CallError(grpc.StatusCode.CANCELLED, str(error)) from None
        except grpc.RpcError as error:
            if (code := code_of(error)) == grpc.StatusCode.UNIMPLEMENTED:
                raise CallError(code, other_version(self._peer)) from None
            raise
        finally:
            if begun is not None:
                begun.cancel()  # if the answer was not read to its end


def bucket_of(card: Card, own: Card) -> str:
    """The bucket through which this site reaches the peer of a card: the peer's own or, if it has no address,
    this site's; '' = none.
    """
    address = card.address or own.address
    return address if "://" in address else ""
