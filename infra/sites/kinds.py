"""The interface of a kind of items. An item is a head (JSON) and perhaps a body (a file). A kind lists this
site's items for a peer and judges those of a peer; the exchange (exchange.py) transfers them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import grpc

from atelier.engine.config.base import Json
from atelier.infra.sites.audit import Audit
from atelier.infra.sites.incoming import Arrival, NotTaken

Head = TypeVar("Head")
IsDue = Callable[[str], bool]


@dataclass(frozen=True)
class Item(Generic[Head]):
    """An item. `size`: bytes of its body, None = no body. `key`: identifies it in retries and refusals; it
    differs for other bytes. `about`: its line in the audit log, {} = none.
    """

    key: str
    head: Head
    text: bytes  # the head as it is sent
    about: dict[str, Json]
    name: str = ""  # for users
    group: str = ""  # after an early refusal the next items of the group wait
    size: int | None = None
    is_again: bool = False  # offered again to a peer that has accepted it: a refusal is not logged


class ItemKind(ABC, Generic[Head]):
    """A kind of items, in the mailbox of this site."""

    name: str
    timeout_s = 30.0  # of a call without a body
    early_s = 0.0  # seconds until the retry of an item that is too early
    again_s = 30.0  # the same, of one that arrived damaged or could not be read
    is_kept = False  # an item that a peer has accepted is not offered again

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @abstractmethod
    def item(self, data: bytes, peer: str) -> Item[Head]:
        """The item of a head that `peer` sends. Raises DamageError for an invalid head."""

    @abstractmethod
    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterable[Item[Head]]]:
        """This site's items for a peer; each group is in order. `is_due`: whether to try the item of a key
        now.
        """

    @abstractmethod
    def take(self, item: Item[Head], arrival: Arrival) -> Json:
        """Keep an item of a peer; durable when it returns. Raises NotTaken, DamageError."""

    def expects(self, peer: str) -> bool:
        """Whether a peer that cannot call this site may have items for it; otherwise it is not asked."""
        return True

    def offset(self, item: Item[Head], peer: str) -> int | None:
        """How many bytes of a body have arrived; None = all. Raises NotTaken for a refused item."""
        return 0

    def path(self, item: Item[Head], peer: str) -> Path:
        """The body of an item of this site for a peer. Raises NotTaken if there is none."""
        raise NotTaken(f"a {self.name} has no body")

    def note(self, what: str, peer: str, item: Item[Head], *, is_new: bool) -> None:
        """Log an item that has crossed. If it is not new, only unless there is a line."""
        if item.about and is_new:
            self.audit.add(what, who=peer, **item.about)
        elif item.about:
            self.audit.add_once(what, peer, **item.about)

    def settled(self, peer: str, item: Item[Head], size: int = 0, seconds: float = 0.0) -> None:
        """A peer has an item or refused it for good. `size` bytes crossed now, in `seconds`."""

    def early(self, peer: str, item: Item[Head], code: grpc.StatusCode | None) -> None:
        """A peer refused an item as too early."""

    def holds_up(self, code: grpc.StatusCode | None) -> bool:
        """Whether an early refusal with this code makes the next items of the group wait."""
        return True
