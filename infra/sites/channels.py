"""The connections of an agent to its peers. Over mutual TLS one each, kept open from call to call, since a
handshake takes more bytes than most of what is said; to a peer whose address is a bucket none is open.
"""

from collections.abc import Callable, Sequence

import grpc

from atelier.infra.sites.bucket_calls import Calls
from atelier.infra.sites.bucket_channel import BucketChannel
from atelier.infra.sites.keys import Card, Keys
from atelier.infra.sites.transfer import CallChannel

Option = tuple[str, int | str]
RECONNECT: list[Option] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Channels:
    """The channels of the site of `keys`; one is opened anew when a card, or this site's own, is another.
    `on_refused` gets what is not taken of answers in a bucket.
    """

    def __init__(
        self, keys: Keys, options: Sequence[Option], calls: Calls, on_refused: Callable[[str], None]
    ) -> None:
        self._keys, self._options = keys, [*options, *RECONNECT]
        self._calls, self._on_refused = calls, on_refused
        self._open: dict[str, tuple[tuple[str, str, str], CallChannel]] = {}

    def of(self, card: Card) -> CallChannel:
        """The channel to the peer of a card."""
        own = self._keys.card
        about = (card.address, card.digest, own.digest)
        found = self._open.get(card.site)
        if found is not None and found[0] == about:
            return found[1]
        self.drop(card.site)
        channel = self._in_bucket(card) if card.is_in_bucket else self._over_tls(card, own)
        self._open[card.site] = (about, channel)
        return channel

    def _in_bucket(self, card: Card) -> CallChannel:
        return BucketChannel(self._keys, card, self._calls, self._on_refused)

    def _over_tls(self, card: Card, own: Card) -> CallChannel:
        credentials = grpc.ssl_channel_credentials(
            card.certificate.encode(), self._keys.key, own.certificate.encode()
        )
        options = [*self._options, ("grpc.ssl_target_name_override", card.tls_name)]
        return grpc.secure_channel(card.address, credentials, options)

    def drop(self, peer: str) -> None:
        """Close the channel to a peer, if there is one."""
        if (found := self._open.pop(peer, None)) is not None:
            found[1].close()

    def close(self) -> None:
        for peer in [*self._open]:
            self.drop(peer)
