"""Presences and decisions of an elastic membership, as files in the mailbox. Each site reports its presence;
the coordinator decides which sites are in a round. A decision is durable before it can be read, and made
once: the first file wins. Torch-free.
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Spec, canonical
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import DamageError, DataError
from atelier.engine.config.record import Digest
from atelier.engine.config.site_name import SiteName
from atelier.engine.extensions.sites.mailbox import ROUND, Mailbox
from atelier.engine.extensions.sites.round_log import RoundLine
from atelier.engine.io.storage import create_exclusive, exists, join, read_as, read_bytes, write_bytes

PRESENCE, DECISION = "presence.json", "decision.json"
MOST_DECISION = 1 << 22  # bytes


class Presence(Spec):
    """A site's report, every few seconds, that it is running."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["presence"] = "presence"
    trajectory: Digest
    site: SiteName
    round: int = Field(ge=1, description="the next round that it contributes to")
    safe: int = Field(ge=0, description="the last round that it will not ask for again")
    beat: int = Field(ge=0, description="differs in each report")
    coordinator: str = Field(
        max_length=63, description="the site that decides who is in a round, by this site's settings; any"
    )
    oldest: int | None = Field(
        default=None,
        ge=1,
        description="for a site that is at an earlier round: the oldest decision that is left",
    )


class Decision(Spec):
    """Which sites are in a round, and the samples of each site in the next one."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    kind: Literal["decision"] = "decision"
    trajectory: Digest
    site: SiteName = Field(description="the site that decided it")
    line: RoundLine

    @property
    def text(self) -> bytes:
        return canonical(self.model_dump(mode="json", by_alias=True, exclude_none=True))


class Meeting:
    """The presences and decisions in a mailbox."""

    def __init__(self, box: Mailbox) -> None:
        self._box = box

    def tell(self, presence: Presence) -> None:
        """Report a site's presence."""
        text = canonical(presence.model_dump(mode="json", by_alias=True, exclude_none=True))
        write_bytes(join(self._box.place, f"{presence.site}-{PRESENCE}"), text)

    def presence(self, site: str) -> Presence | None:
        """A site's last report; None = none. Raises DamageError."""
        place = join(self._box.place, f"{site}-{PRESENCE}")
        if not exists(place):
            return None
        found = read_as(Presence, place, "a report of presence")
        if (found.trajectory, found.site) != (self._box.trajectory, site):
            raise DamageError(f"{place}: is of site {found.site}, or of another training")
        return found

    def heard(self, site: str) -> Presence | None:
        """`presence`; None for a damaged one, which the next report replaces."""
        try:
            return self.presence(site)
        except DamageError:
            return None

    def decide(self, decision: Decision) -> Decision:
        """Decide a round, unless it is decided already. Returns the decision that counts."""
        place = self._place(decision.line.round)
        if create_exclusive(place, decision.text):
            return decision
        there = self.decision(decision.line.round)
        if there is None:
            raise DamageError(f"{place}: was decided, and is gone: the round is over")
        return there

    def decision(self, number: int) -> Decision | None:
        """The decision on a round; None = not yet. Raises DamageError."""
        place = self._place(number)
        if not exists(place):
            return None
        try:
            found = parse_as(Decision, read_bytes(place, MOST_DECISION), place, "a decision")
        except FileNotFoundError:  # forgotten meanwhile
            return None
        if (found.trajectory, found.line.round) != (self._box.trajectory, number):
            raise DamageError(f"{place}: is of round {found.line.round}, or of another training")
        return found

    def current(self, number: int) -> Decision | None:
        """`decision` on the round that this site is at. Raises DataError if that round is long over."""
        found, last = self.decision(number), self.last()
        found = found or self.decision(number)  # it and later ones may have been decided meanwhile
        if found is None and last is not None and last.line.round > number:
            raise self._too_old(number, f"round {last.line.round} is decided")
        return found

    def check_told(self, number: int, coordinator: str) -> None:
        """Raise DataError if the decision on the round that this site is at will never come: the coordinator
        reports that it has removed it.
        """
        said = self.heard(coordinator)
        if said is not None and said.oldest is not None and said.oldest > number:
            raise self._too_old(number, f"at {coordinator} round {said.oldest} is the oldest")

    def oldest(self, said: Presence) -> int:
        """The first round with a decision here; if there is none, the first that the site, which reports
        `said`, may still decide.
        """
        numbers = (number for number in self._box.rounds() if exists(self._place(number)))
        return next(numbers, max(said.safe + 1, said.round - 1))

    def _too_old(self, number: int, why: str) -> DataError:
        return DataError(
            f"{self._place(number)}: is gone, and {why}: this site's checkpoints are too old to continue, or"
            f" the mailbox is of an earlier run; remove {self._box.place} at all sites and start all again"
        )

    def decided(self, after: int = 0) -> Iterator[Decision]:
        """The decisions here on rounds after `after`, in the order of rounds."""
        for number in self._box.rounds():
            if number > after and (found := self.decision(number)) is not None:
                yield found

    def last(self) -> Decision | None:
        """The last decision here."""
        numbers = reversed(self._box.rounds())
        return next((found for number in numbers if (found := self.decision(number)) is not None), None)

    def _place(self, number: int) -> str:
        return join(self._box.place, f"{ROUND}{number:06d}", DECISION)
