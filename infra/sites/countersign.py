"""Sign audit logs at two sites. A site sends a peer a signed statement: the length of its log, and the counts
of messages between the two. The peer answers with its own statement, which names the first one. Both sites
keep both. So if one later shortens or changes its log, the statement at the other site proves it.
"""

import base64
import hashlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

import grpc
from pydantic import Field

from atelier.engine.config.base import Json, Spec, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import DamageError
from atelier.engine.config.record import Digest
from atelier.engine.config.site_name import SiteName
from atelier.infra.sites import signature
from atelier.infra.sites.audit import SIGNED, Audit, Chain, Crossed, read_lines
from atelier.infra.sites.incoming import Arrival, NotTaken
from atelier.infra.sites.keys import Keys
from atelier.infra.sites.kinds import IsDue, Item, ItemKind
from atelier.infra.sites.transfer import TIMEOUT_S, code_of

WHAT = "a statement about an audit log"
REST_S, MOST_S = 2.0, 30.0  # a log is signed after so long without new messages, and at least so often
MOST_STATEMENT = 1 << 13  # bytes: a few counts for each kind of message
MOST_ANSWERED, MINUTE_S = 60, 60.0  # statements of a peer that are answered, and logged, in a minute


class Statement(Spec):
    """The length of the audit log of `site`, and the counts of messages between it and `peer` by then."""

    site: SiteName
    peer: SiteName
    lines: int = Field(ge=0)
    digest: Digest = Field(description="of the last of these lines")
    crossed: Crossed = Field(description="messages and bytes by way (out, in) and kind")
    answers: str = Field(
        default="", pattern=r"^([0-9a-f]{64})?$", description="digest of the statement it answers"
    )
    certificate: Digest = Field(description="of the key that signs it")

    @property
    def text(self) -> bytes:
        return canonical({"what": WHAT, **self.model_dump(mode="json")})

    @property
    def own_digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()


class Signed(Spec):
    """A statement and its signature (ECDSA over P-256 with SHA-256, base64)."""

    statement: Statement
    signature: str = Field(max_length=200)

    def check(self, certificate: str, place: str) -> None:
        """Raise DamageError unless the key of this certificate (PEM) has signed it."""
        try:
            raw = base64.b64decode(self.signature, validate=True)
        except ValueError:
            raw = b""
        if not signature.is_signed(certificate, self.statement.text, raw):
            raise DamageError(
                f"{place}: the signature of {self.statement.site} is not by its certificate", place=place
            )


Put: TypeAlias = Callable[[Item[Signed]], Json]  # sends an item to a peer; its answer


def sign(statement: Statement, key: bytes) -> Signed:
    """`key`: in PEM."""
    raw = signature.sign(key, statement.text)
    return Signed(statement=statement, signature=base64.b64encode(raw).decode())


class Countersigning(ItemKind[Signed]):
    """Statements about audit logs; the answer to one is a statement of the peer."""

    name = "statement"

    def __init__(self, keys: Keys, audit: Audit) -> None:
        super().__init__(audit)
        self._keys = keys
        self._not_before: dict[str, float] = {}  # when a peer is asked again
        self._lock = threading.Lock()  # around accepting, signing and keeping; never held during a call
        self._last: dict[str, Statement] = {}  # by peer: the accepted statement about its longest log
        self._taken: dict[str, list[tuple[float, int]]] = {}  # by peer: when, and how many lines; in order
        self._since: dict[str, tuple[int, float, float]] = {}  # unsigned messages; first seen, last changed
        self._answers: dict[str, Signed] = {}  # by peer: the last one
        self._answered: dict[str, deque[float]] = {}  # by peer: when
        for found in read_lines(audit.path, Chain()):
            if found.get("what") == SIGNED:
                own, theirs = (
                    parse_as(Signed, json.dumps(found.get(key)), str(audit.path), WHAT)
                    for key in ("own", "theirs")
                )
                self._remember(theirs.statement, -math.inf)
                if own.statement.answers:
                    self._answers[own.statement.peer] = own

    def item(self, data: bytes, peer: str) -> Item[Signed]:
        if len(data) > MOST_STATEMENT:
            raise DamageError(
                f"{peer}: {len(data)} bytes, a statement has at most {MOST_STATEMENT}", place=peer
            )
        return _item(parse_as(Signed, data, peer, WHAT))

    def groups(self, peer: str, is_due: IsDue) -> Iterator[Iterator[Item[Signed]]]:
        """None: statements are sent by `ask_if_due`."""
        return iter(())

    def take(self, item: Item[Signed], arrival: Arrival) -> Json:
        return self.answer(item.head, arrival.peer)

    def _remember(self, said: Statement, now: float) -> None:
        """Remember the length of a peer's log and, for as long as a call may last, its earlier lengths."""
        if said.site not in self._last or said.lines >= self._last[said.site].lines:
            self._last[said.site] = said
            taken = self._taken.setdefault(said.site, [])
            taken.append((now, said.lines))
            while len(taken) > 1 and now - taken[1][0] > TIMEOUT_S:
                taken.pop(0)

    def _own(self, peer: str, answers: str = "") -> Signed:
        """This site's statement now, about lines that are on disk. Raises DamageError if the key does not
        belong to the card.
        """
        position, (card, key) = self.audit.position(peer), self._keys.pair
        self.audit.sync()
        statement = Statement(
            site=card.site,
            peer=peer,
            lines=position.lines,
            digest=position.digest,
            crossed=position.crossed,
            answers=answers,
            certificate=card.digest,
        )
        signed = sign(statement, key)
        try:
            signed.check(card.certificate, str(self._keys.folder))
        except DamageError as error:
            raise DamageError(str(error), "`atelier site rotate` makes new ones") from None
        return signed

    def _check(self, theirs: Signed, peer: str) -> None:
        """Check that a peer has signed a statement, for this site. Raises NotTaken, DamageError."""
        said, card = theirs.statement, self._keys.peers.get(peer)
        if card is None:
            raise NotTaken(f"{peer} is no longer trusted")
        if (said.site, said.peer) != (peer, self._keys.card.site) or said.certificate != card.digest:
            raise NotTaken(f"a statement of {said.site} for {said.peer}, and {peer} sends it")
        theirs.check(card.certificate, peer)

    def _take(self, said: Statement, peer: str, now: float, least: int | None = None) -> None:
        """Accept a peer's statement. Raises NotTaken if it contradicts an earlier one. One about fewer lines
        was overtaken on its way if it has `least` lines or more; default: those accepted before any current
        call can have begun.
        """
        before = self._last.get(peer)
        if before is not None and said.lines < before.lines:
            old = [lines for at, lines in self._taken[peer] if now - at > TIMEOUT_S]
            is_overtaken = said.lines >= (max(old, default=0) if least is None else least)
            raise NotTaken(
                f"the audit log of {peer} has {said.lines} lines, and it has signed {before.lines}",
                "early" if is_overtaken else "never",
            )
        if before is not None and said.lines == before.lines and said.digest != before.digest:
            raise NotTaken(f"{peer} has signed another audit log of {said.lines} lines")
        self._remember(said, now)

    def _keep(self, peer: str, own: Signed, theirs: Signed) -> None:
        about = {"own": own.model_dump(mode="json"), "theirs": theirs.model_dump(mode="json")}
        self.audit.add(SIGNED, who=peer, **about)

    def answer(self, theirs: Signed, peer: str, now: Callable[[], float] = time.monotonic) -> dict[str, Json]:
        """Accept a peer's statement and return this site's; the same again for the same one. Raises NotTaken,
        DamageError.
        """
        with self._lock:
            self._check(theirs, peer)
            digest, at, own = theirs.statement.own_digest, now(), self._answers.get(peer)
            if own is None or not self._answers_now(own.statement, digest):
                self._count(peer, at)
                self._take(theirs.statement, peer, at)
                own = self._own(peer, digest)
                self._keep(peer, own, theirs)
                self._answers[peer] = own
        return own.model_dump(mode="json")

    def _answers_now(self, own: Statement, digest: str) -> bool:
        """Whether `own` answers the statement of this digest, with this site's current key."""
        return own.answers == digest and own.certificate == self._keys.card.digest

    def _count(self, peer: str, now: float) -> None:
        """Raises NotTaken (early) for more than `MOST_ANSWERED` statements of a peer in a minute."""
        times = self._answered.setdefault(peer, deque(maxlen=MOST_ANSWERED))
        if len(times) == MOST_ANSWERED and now - times[0] < MINUTE_S:
            raise NotTaken(f"{peer} has signed {MOST_ANSWERED} times in a minute", "early")
        times.append(now)

    def ask_if_due(self, put: Put, peer: str, now: Callable[[], float] = time.monotonic) -> None:
        """Ask a peer to sign, if there are unsigned messages and no new one came for `REST_S`, or the oldest
        has waited for `MOST_S`. Raises RpcError, NotTaken, DamageError.
        """
        unsigned, at = self.audit.position(peer).unsigned, now()
        if not unsigned or at < self._not_before.get(peer, at):
            self._since.pop(peer, None)
            return
        seen, first, last = self._since.get(peer, (0, at, at))
        self._since[peer] = (unsigned, first, at if unsigned != seen else last)
        if at - self._since[peer][2] >= REST_S or at - first >= MOST_S:
            self._not_before[peer] = at + MOST_S  # a refusal has one line, not one for each look
            try:
                self.ask(put, peer)
            except (NotTaken, DamageError) as refused:
                if isinstance(refused, NotTaken) and refused.when == "early":
                    return
                self.audit.add("refused", who=peer, why=str(refused))
                raise
            except grpc.RpcError as error:
                if code_of(error) == grpc.StatusCode.ABORTED:
                    return  # the peer has a later statement already
                raise
            del self._not_before[peer]

    def ask(self, put: Put, peer: str) -> None:
        """Ask a peer to sign. Raises RpcError, NotTaken, DamageError."""
        with self._lock:
            own, before = self._own(peer), self._last.get(peer)
        theirs = self.item(canonical(put(_item(own))), peer).head
        if theirs.statement.answers != own.statement.own_digest:
            raise NotTaken(f"{peer} signed an answer to something else")
        with self._lock:
            self._check(theirs, peer)
            self._take(theirs.statement, peer, time.monotonic(), before.lines if before is not None else 0)
            self._keep(peer, own, theirs)
        self._since.pop(peer, None)


def _item(signed: Signed) -> Item[Signed]:
    """Without a line in the audit log: one line has the statements of both, once both have signed."""
    return Item("", signed, canonical(signed.model_dump(mode="json")), {})
