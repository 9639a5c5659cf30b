"""What sites exchange: items of a kind, each a head (JSON) and perhaps a body (a file). A kind says which
items this site has for a peer, and judges those that a peer has for this site; the exchange (exchange.py)
carries them.
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
    """Something to exchange. `size`: bytes of its body, None = it has none. `key`: by which what was refused,
    or waits, is remembered: another one for other bytes. `about`: its line in the audit log, {} = none.
    """

    key: str
    head: Head
    text: bytes  # the head as it crosses
    about: dict[str, Json]
    name: str = ""  # for users
    group: str = ""  # an early refusal holds up what follows in its group
    size: int | None = None
    is_again: bool = False  # offered though a peer has taken it: a refusal has no line


class ItemKind(ABC, Generic[Head]):
    """A kind of items, in the mailbox of this site."""

    name: str
    timeout_s = 30.0  # of a call without a body
    early_s = 0.0  # after an item that is too early, until it is tried again
    again_s = 30.0  # the same, after one that came damaged, or could not be read
    is_kept = False  # an item that a peer has taken is not looked at again

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    @abstractmethod
    def item(self, data: bytes, peer: str) -> Item[Head]:
        """The item of a head that `peer` sends. Raises DamageError for what is none."""

    @abstractmethod
    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterable[Item[Head]]]:
        """What this site has for a peer, those in a group in their order. `is_due`: by its key, whether an
        item is to be tried now.
        """

    @abstractmethod
    def take(self, item: Item[Head], arrival: Arrival) -> Json:
        """Keep an item of a peer; durable when it returns. Raises NotTaken, DamageError."""

    def expects(self, peer: str) -> bool:
        """Whether a peer that cannot call this site may have something for it: it is not asked otherwise."""
        return True

    def offset(self, item: Item[Head], peer: str) -> int | None:
        """How many bytes of a body have come; None = all. Raises NotTaken for an item that is not taken."""
        return 0

    def path(self, item: Item[Head], peer: str) -> Path:
        """The body of an item that this site has for a peer. Raises NotTaken where it has none."""
        raise NotTaken(f"a {self.name} has no body")

    def note(self, what: str, peer: str, item: Item[Head], *, is_new: bool) -> None:
        """A line of the audit log for an item that has crossed; where it is not new, unless there is one."""
        if item.about and is_new:
            self.audit.add(what, who=peer, **item.about)
        elif item.about:
            self.audit.add_once(what, peer, **item.about)

    def settled(self, peer: str, item: Item[Head], size: int = 0, seconds: float = 0.0) -> None:
        """A peer has an item, or will never take it; `size` bytes crossed now, in so many seconds."""

    def early(self, peer: str, item: Item[Head], code: grpc.StatusCode | None) -> None:
        """A peer does not take an item yet."""

    def holds_up(self, code: grpc.StatusCode | None) -> bool:
        """Whether an item that is refused for now with this code holds up those after it in its group."""
        return True
