"""The connections of an agent to its peers. Over mutual TLS one each, kept open from call to call, since a
handshake takes more bytes than most of what is said; to a peer whose address is a bucket none is open.
"""

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import grpc

from atelier.infra.sites.bucket_calls import Calls
from atelier.infra.sites.bucket_channel import BucketChannel
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.transfer import CallChannel, CallError

Option = tuple[str, int | str]
RECONNECT: list[Option] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 20_000),  # as gRPC has it: how long a handshake may take
    ("grpc.max_reconnect_backoff_ms", 1000),
]

# who has vanished, or hangs, is noticed on both sides of a call: what it has begun goes on over another
# connection. So long a ping may wait behind what was sent before it on a thin link.
ALIVE: list[Option] = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 120_000),
    ("grpc.http2.ping_timeout_ms", 120_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


class Channels:
    """The channels of the site of `keys`; one is opened anew when a card, or this site's own, is another.
    `on_refused` gets what is not taken of answers in a bucket.
    """

    def __init__(
        self, keys: Keys, options: Sequence[Option], calls: Calls, on_refused: Callable[[str], None]
    ) -> None:
        self._keys, self._options = keys, [*options, *RECONNECT, *ALIVE]
        self._calls, self._on_refused = calls, on_refused
        self._open: dict[str, tuple[tuple[str, str, str], CallChannel]] = {}
        self._is_closed = False
        self._lock = threading.Lock()  # around both; a channel is closed beside it

    def of(self, card: Card) -> CallChannel:
        """The channel to the peer of a card. Raises CallError when all were closed, and for a certificate
        out of its time.
        """
        if problem := card.out_of_time:
            self.drop(card.site)
            raise CallError(grpc.StatusCode.UNAUTHENTICATED, problem)
        own, key = self._keys.pair
        about = (card.address, card.digest, own.digest)
        with self._lock:
            if self._is_closed:
                raise CallError(grpc.StatusCode.CANCELLED, "this agent ends")
            found = self._open.get(card.site)
            if found is not None and found[0] == about:
                return found[1]
            channel = self._in_bucket(card) if card.is_in_bucket else self._over_tls(card, own, key)
            self._open[card.site] = (about, channel)
        if found is not None:
            found[1].close()
        return channel

    def _in_bucket(self, card: Card) -> CallChannel:
        return BucketChannel(self._keys, card, self._calls, self._on_refused)

    def _over_tls(self, card: Card, own: Card, key: bytes) -> CallChannel:
        credentials = grpc.ssl_channel_credentials(card.certificate.encode(), key, own.certificate.encode())
        options = [*self._options, ("grpc.ssl_target_name_override", card.tls_name)]
        return _OverTls(grpc.secure_channel(card.address, credentials, options))

    def drop(self, peer: str) -> None:
        """Close the channel to a peer, if there is one; its calls end."""
        with self._lock:
            found = self._open.pop(peer, None)
        if found is not None:
            found[1].close()

    def keep(self, peers: Container[str]) -> None:
        """Close the channels to all others."""
        for peer in [*self._open]:
            if peer not in peers:
                self.drop(peer)

    def close(self) -> None:
        """Close all; no other is opened."""
        with self._lock:
            self._is_closed = True
        self.keep(())


class _OverTls:
    """gRPC's channel, of which a call fails as all others do where another thread has closed it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str) -> Callable[..., bytes]:
        return _failing(self._channel.unary_unary(method))

    def stream_unary(self, method: str) -> Callable[..., bytes]:
        return _failing(self._channel.stream_unary(method))

    def unary_stream(self, method: str) -> Callable[..., Iterator[bytes]]:
        return _failing(self._channel.unary_stream(method))

    def close(self) -> None:
        """Its calls end."""
        self._channel.close()


# Any: gRPC's calls have no types
def _failing(call: Any) -> Callable[..., Any]:
    def ask(request: bytes | Iterator[bytes], timeout: float) -> Any:
        try:
            return call(request, timeout=timeout)
        except ValueError as error:  # "on closed channel"
            raise CallError(grpc.StatusCode.CANCELLED, str(error)) from None

    return ask
