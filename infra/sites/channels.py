"""The connections of an agent to its peers: one each, over mutual TLS, kept open from call to call, since a
handshake takes more bytes than most of what is said.
"""

from collections.abc import Sequence

import grpc

from atelier.infra.sites.keys import Card, Keys

Option = tuple[str, int | str]
RECONNECT: list[Option] = [
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Channels:
    """The channels of the site of `keys`; one is opened anew when a card, or this site's own, is another."""

    def __init__(self, keys: Keys, options: Sequence[Option]) -> None:
        self._keys, self._options = keys, [*options, *RECONNECT]
        self._open: dict[str, tuple[tuple[str, str, str], grpc.Channel]] = {}

    def of(self, card: Card) -> grpc.Channel:
        """The channel to the peer of a card."""
        own = self._keys.card
        about = (card.address, card.digest, own.digest)
        found = self._open.get(card.site)
        if found is not None and found[0] == about:
            return found[1]
        self.drop(card.site)
        credentials = grpc.ssl_channel_credentials(
            card.certificate.encode(), self._keys.key, own.certificate.encode()
        )
        options = [*self._options, ("grpc.ssl_target_name_override", card.site)]
        channel = grpc.secure_channel(card.address, credentials, options)
        self._open[card.site] = (about, channel)
        return channel

    def drop(self, peer: str) -> None:
        """Close the channel to a peer, if there is one."""
        if (found := self._open.pop(peer, None)) is not None:
            found[1].close()

    def close(self) -> None:
        for peer in [*self._open]:
            self.drop(peer)
