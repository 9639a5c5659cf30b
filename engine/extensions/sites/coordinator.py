"""Decide which sites are in a round of an elastic membership. Torch-free.

These are the sites that have contributed when all others are late or silent. If they are too few and other
sites wait for the next round, the round is empty: it has no outer step. Silence is judged by this process's
clock and by when reports arrive, never by a time in a report.
"""

import time
from collections.abc import Callable, Iterable, Mapping

from atelier.engine.config.error import DamageError, DataError
from atelier.engine.config.site_name import ANY
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Decision, Meeting, Presence
from atelier.engine.extensions.sites.messages import AboutRounds, Contribution
from atelier.engine.extensions.sites.round_log import RoundLine
from atelier.engine.extensions.sites.sample_log import SampleLog

ADDED = "added other contributions in the round before"
BEGAN = (
    "began with other weights than this site, or with another finished teacher: copy that model, or `init`,"
    " from one site to the other; CPUs of two kinds draw other numbers from a seed, and need an `init`"
)


class Coordinator:
    """Decides rounds of one training for a site that may. Its observations end with the process: a new one
    waits again, but decides no round twice.
    """

    def __init__(
        self,
        site: str,
        rounds: AboutRounds,
        box: Mailbox,
        clock: Callable[[], float] = time.monotonic,
        why_not: Callable[[Contribution], str] | None = None,
    ) -> None:
        """`site`: the one that decides. `why_not`: why a contribution cannot be added ('' = it can), None =
        all can. One that cannot counts as missing.
        """
        self._site, self.rounds, self._membership = site, rounds, rounds.membership
        self._why_not, self._judged = why_not, dict[str, str]()  # by digest of its body
        self.refused: dict[str, str] = {}  # why contributions are refused, by site, at the last look
        self._box, self._meeting, self._clock = box, Meeting(box), clock
        self._heard: dict[str, tuple[Presence | None, float]] = {}  # by site: its last report, and when
        self._enough: tuple[int, float] = (0, 0.0)  # a round, and since when it has the minimum

    def look(self, number: int, before: RoundLine | None) -> RoundLine | None:
        """The decision on round `number`, which follows the line `before`; None while it waits. A site whose
        contribution is refused counts as missing: it is neither in the round nor waited for. Raises DataError
        if the accepted and expected ones can never be enough.
        """
        self.refused = {}
        there = self._meeting.current(number)
        if there is not None:
            return there.line
        has_all = self.rounds.first > 1 or all(map(self._box.about, self.rounds.rows))
        if self.rounds.coordinator == ANY and not has_all:
            return None  # not all sites have reached this mailbox yet
        now, samples = self._clock(), before.samples if before else None
        log = SampleLog(self.rounds.rows, self.rounds.every, samples)
        for site in self.rounds.rows:
            self._hear(site, now)
        added = before.sha256 if before else self.rounds.begun
        here, late = self._contributions(number, log.assigned, added)
        minimum = self._membership.minimum
        if late and self._waits(late, number, now, has_enough=len(here) >= minimum):
            return None
        coming = {site for site in self.rounds.rows if self._comes(site, number, now)}
        following = {*here, *coming}
        if len(here) < minimum:  # too few for this round; maybe enough with those that wait for the next
            if not coming or len(following) < minimum:
                self._check_enough(number, coming)
                return None
            here = {}
        line = RoundLine(
            round=number,
            codecs={site: head.codec for site, head in here.items()},
            sha256={site: head.body.sha256 for site, head in here.items()},
            samples=log.decided(here, following),
            before=before.digest if before else "",
        )
        decision = Decision(trajectory=self._box.trajectory, site=self._site, line=line)
        return self._meeting.decide(decision).line

    def _contributions(
        self, number: int, sites: Iterable[str], added: Mapping[str, str]
    ) -> tuple[dict[str, Contribution], list[str]]:
        """The accepted contributions, and the sites that have sent none; the others are `refused`. `added`:
        the digests that were added in the round before.
        """
        here, late = dict[str, Contribution](), list[str]()
        for site in sites:
            try:
                head = self._box.contribution(number, site)
            except (DamageError, DataError) as bad:
                self.refused[site] = str(bad)
                continue
            if head is None:
                late.append(site)
            elif why := self._judge(head, added):
                self.refused[site] = why
            else:
                here[site] = head
        return here, late

    def _judge(self, head: Contribution, added: Mapping[str, str]) -> str:
        """Why a contribution is refused: it starts from other outer weights, or cannot be added; '' = it is
        accepted.
        """
        if head.before != added:
            place = self._box.folder(head.round, head.site)
            return f"{place}: {head.site} {ADDED if head.round > 1 else BEGAN}"
        key = head.body.sha256
        if self._why_not is not None and key not in self._judged:
            self._judged[key] = self._why_not(head)
        return self._judged.get(key, "")

    def _check_enough(self, number: int, coming: set[str]) -> None:
        """Raise DataError if too few sites can still be in this round or the next: a site never sends a
        second contribution to a round.
        """
        minimum, possible = self._membership.minimum, ({*self.rounds.rows} - {*self.refused}) | coming
        if len(possible) < minimum:
            raise DataError(
                f"round {number}: needs {minimum} sites (train.link.membership.minimum), and contributions of"
                f" {' and '.join(self.refused)} are refused: {'; '.join(self.refused.values())}; remove"
                f" {self._box.place} at all sites and start all again"
            )

    def _hear(self, site: str, now: float) -> None:
        said = self._meeting.heard(site)
        if site not in self._heard or self._heard[site][0] != said:
            self._heard[site] = (said, now)

    def hears(self, site: str) -> bool:
        """Whether a site has reported within the grace, as far as this process has looked."""
        now = self._clock()
        self._hear(site, now)
        return self._is_heard(site, now)

    def _is_heard(self, site: str, now: float) -> bool:
        return now - self._heard[site][1] <= self._membership.grace

    def _waits(self, late: list[str], number: int, now: float, *, has_enough: bool) -> bool:
        """Whether to wait for one of these. Not for one that reports a later round."""
        if has_enough:
            if self._enough[0] != number:
                self._enough = (number, now)
            if now - self._enough[1] >= self._membership.deadline:
                return False
        return any(self._is_heard(site, now) and not _is_past(self._heard[site][0], number) for site in late)

    def _comes(self, site: str, number: int, now: float) -> bool:
        """Whether a site that missed a round waits for the next one."""
        return self._is_heard(site, now) and _is_past(self._heard[site][0], number)


def _is_past(said: Presence | None, number: int) -> bool:
    return said is not None and said.round > number


def check_who(line: RoundLine, rounds: AboutRounds) -> None:
    """Raise DataError for a decision that does not fit these rounds and sites."""
    samples, members = line.samples, {*line.sha256}
    if samples is None:
        raise DataError(f"round {line.round}: assigns no samples")
    if not rounds.first <= line.round <= rounds.last:
        raise DataError(f"round {line.round}: is not one of rounds {rounds.first} to {rounds.last}")
    if strange := sorted({*members, *line.codecs, *samples.assigned, *samples.next} - {*rounds.rows}):
        raise DataError(f"round {line.round}: {strange[0]} is not a site of the training")
    if members != {*line.codecs} or not members <= {*samples.assigned}:
        raise DataError(f"round {line.round}: has contributions of sites that were assigned no samples")
    if members and len(members) < rounds.membership.minimum:
        raise DataError(f"round {line.round}: has fewer than {rounds.membership.minimum} sites")


def check_after(line: RoundLine, rounds: AboutRounds, before: RoundLine | None) -> None:
    """Raise DataError for a decision that does not follow from the line `before`."""
    if line.before != (before.digest if before else ""):
        raise DataError(f"round {line.round}: its decision does not follow the line before")
    log = SampleLog(rounds.rows, rounds.every, before.samples if before else None)
    if line.samples != log.decided(line.sha256, line.samples.next if line.samples else ()):
        raise DataError(f"round {line.round}: its decision assigns other samples than the round log")
