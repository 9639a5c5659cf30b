"""Rounds of an elastic membership at this site: whether it takes part, which samples it learns, and which
sites were in (coordinator.py).

A site that missed a round skips its steps and takes the outer step of the others. It continues with optimiser
states of zero, as a new site would, so its bits depend on the round log alone.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import TypeVar

from atelier.engine.checkpoint.collective_call import all_or_none
from atelier.engine.config.document import parse_as
from atelier.engine.config.error import DataError, StoppedError
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.coordinator import Coordinator, check_after, check_who
from atelier.engine.extensions.sites.long_wait import LongWait
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.membership import Meeting, Presence
from atelier.engine.extensions.sites.messages import AboutRounds, Contribution
from atelier.engine.extensions.sites.outer_state import outer_of
from atelier.engine.extensions.sites.round_log import WHAT, RoundLine, read_log
from atelier.engine.extensions.sites.sample_log import SampleLog
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.stop import StopRequest
from atelier.engine.parallel.gang import Gang

Found = TypeVar("Found")
LOOK_EVERY = 0.2  # seconds between looks for a decision
BEATS = 6  # reports of a site in the allowed time of silence


class ElasticRounds:
    """The rounds of the one role that sites train together. `safe`: the last round that this site will not
    ask for again; `why_not`: why a contribution cannot be added ('' = it can), if this site decides; `say`:
    prints refused contributions and long waits.
    """

    def __init__(
        self,
        link: Link,
        gang: Gang,
        stop: StopRequest,
        member: RoleState,
        safe: Callable[[], int],
        why_not: Callable[[Contribution], str],
        say: Callable[[str], None],
    ) -> None:
        self._why_not, self._say, self._outer = why_not, say, outer_of(member)
        self._link, self._gang, self._stop, self._member, self._safe = link, gang, stop, member, safe
        self._log: tuple[int, SampleLog] = (-1, SampleLog(link.rows, link.every))  # after how many rounds
        self._coordinator: tuple[str, Coordinator] | None = None  # by trajectory
        self._followed = read_log(link.rounds) if link.rounds else None
        self._told = (0, 0, 0.0)  # the rounds of the last report, and when
        self._telling = Lock()  # guards _told
        self._refused = 0  # the round to which this site does not contribute
        self.is_out = False  # whether this site skips its current step

    def number(self, clock: int) -> int:
        """The round that step `clock` belongs to."""
        return (clock - self._member.start) // self._link.every + 1

    def box(self, number: int) -> Mailbox:
        """The mailbox of a round: that of the trajectory in which it is sent."""
        segment = self._member.segment(self._member.start + number * self._link.every)
        return Mailbox(self._link.mailbox, segment.fingerprint)

    @property
    def samples(self) -> SampleLog:
        """The samples of the round after the last one that is decided."""
        log = self._outer.log
        if self._log[0] != len(log.lines):
            last = log.last
            before = last.samples if last else None
            self._log = (len(log.lines), SampleLog(self._link.rows, self._link.every, before))
        return self._log[1]

    def sits_out(self, clock: int) -> bool:
        """Whether this site skips step `clock`: it is not expected in the round, has skipped an earlier step
        of it, or the round was decided without it. A collective.
        """
        outer, number, own = self._outer, self.number(clock), self._link.site
        has_passed = outer.passed == number  # maybe in a shorter training, which has another mailbox
        is_expected = own in self.samples.assigned

        def look() -> bool:
            line = self._decided(number)
            out = not is_expected or has_passed or (line is not None and own not in line.sha256)
            self._tell(number, number + out)
            return out

        self.is_out = self._from_first(look, other=False)
        if self.is_out:
            outer.passed = number
        return self.is_out

    def places(self, clock: int) -> list[int] | None:
        """This site's samples at step `clock`; None = not assigned yet, or not to this site."""
        rounds, own = self.number(clock), self._link.site
        if rounds != len(self._outer.log.lines) + 1 or own not in self.samples.assigned:
            return None
        return self.samples.of_step(own, (clock - self._member.start) % self._link.every)

    def refuse(self, number: int) -> None:
        """Do not contribute to a round, and report it: the delta is not finite."""
        self._refused = number
        self.beat(number)

    def beat(self, number: int) -> None:
        """Report this site's presence while it waits in a round."""
        if self._gang.is_first:
            self._tell(number, number + (not self.contributes(number)))

    @contextmanager
    def beating(self, number: int) -> Iterator[None]:
        """Report this site's presence, by a thread, while it encodes, sends, judges and adds."""
        is_over = Event()

        def beat() -> None:
            while not is_over.wait(self._link.membership.grace / BEATS):
                with suppress(OSError):  # the rank itself raises an error that lasts
                    self.beat(number)

        thread = Thread(target=beat, name="beats", daemon=True)
        if self._gang.is_first:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            if self._gang.is_first:
                thread.join()

    def contributes(self, number: int) -> bool:
        """Whether this site has trained a round to its end."""
        return not self.is_out and self._refused != number

    def who(self, number: int) -> RoundLine:
        """Wait for the decision on a round, or make it if this site may. A collective. Raises StoppedError
        when a stop is asked meanwhile, DataError for a decision that does not follow the log.
        """
        outer = self._outer
        before, about, wait = outer.log.last, self.about(number), LongWait(self._say)
        began = time.monotonic()

        def look() -> str:
            self.beat(number)
            line = self._decided(number)
            if line is None:
                self._check_meeting(number, time.monotonic() - began)
            if line is None and about.may_decide(self._link.site):
                line = self._look(number, before)
            return line.text if line is not None else ""

        while not (text := self._from_first(look, other="")):
            if self._gang.from_first(self._stop.is_asked):
                raise StoppedError(
                    f"stopped while {self._member.name} waited for the decision of round {number}, after step"
                    f" {self._member.step}; it continues from its last checkpoint"
                )
            if wait.is_due:
                wait.say(f"{self._decider(number, about)} of {self.box(number).trajectory[:16]}")
            time.sleep(LOOK_EVERY)
        line = parse_as(RoundLine, text, f"round {number}", WHAT)
        check_who(line, about)
        check_after(line, about, before)
        return line

    def _decider(self, number: int, about: AboutRounds) -> str:
        """Text for the waiting notice: which sites are missing, and in which round."""
        if not about.may_decide(self._link.site):
            return f"{about.coordinator}, which decides who is in round {number}"
        box = self.box(number)
        missing = [site for site in about.rows if not box.has(number, site)]
        return f"{', '.join(missing) or 'the decision'}, in round {number}"

    def _from_first(self, work: Callable[[], Found], *, other: Found) -> Found:
        """The result of rank 0; its error is raised on every rank."""
        return all_or_none(
            self._gang,
            lambda: work() if self._gang.is_first else other,
            lambda found: found[:1] * self._gang.world,
        )

    def _decided(self, number: int) -> RoundLine | None:
        if self._followed is not None:
            if number not in self._followed:
                raise DataError(f"{self._link.rounds}: has no round {number}")
            return self._followed[number]
        decision = Meeting(self.box(number)).decision(number)
        return decision.line if decision else None

    def _check_meeting(self, number: int, waited: float) -> None:
        """Raise DataError if the decision would never come, or two sites would decide: more sites have
        another coordinator than have this site's. Judged when all have reported, or after the grace.
        """
        meeting, own = Meeting(self.box(number)), self._link.coordinator
        heard = {site: meeting.heard(site) for site in self._link.sites if site != self._link.site}
        told = {site: said.coordinator for site, said in heard.items() if said is not None}
        others = Counter(coordinator for coordinator in told.values() if coordinator != own)
        is_judged = len(told) == len(heard) or waited > self._link.membership.grace
        most = others.most_common(1)[0] if others else (own, 0)
        if is_judged and most[1] > sum(coordinator == own for coordinator in told.values()):
            site = next(site for site in told if told[site] == most[0])
            raise DataError(
                f"train.link.membership.coordinator: {most[0]} at {site}, {own} at {self._link.site};"
                " give all sites the same"
            )
        meeting.current(number)
        meeting.check_told(number, own)

    def _look(self, number: int, before: RoundLine | None) -> RoundLine | None:
        """The decision on a round, if this site can make it now."""
        coordinator = self._deciding(number)
        line = coordinator.look(number, before)
        for site, why in coordinator.refused.items():
            if line is not None and site not in line.sha256:
                self._say(f"round {number} leaves out {site}: {why}")
        return line

    def _deciding(self, number: int) -> Coordinator:
        box = self.box(number)
        if self._coordinator is None or self._coordinator[0] != box.trajectory:
            new = Coordinator(self._link.site, self.about(number), box, why_not=self._why_not)
            self._coordinator = (box.trajectory, new)
        return self._coordinator[1]

    def about(self, number: int) -> AboutRounds:
        """Settings of the rounds of the trajectory that a round belongs to."""
        begin, every = self._member.start, self._link.every
        segment = self._member.segment(begin + number * every)
        return AboutRounds(
            rows=self._link.rows,
            every=every,
            first=(segment.start - begin) // every + 1,
            last=(segment.end - begin) // every,
            begun=dict(self._outer.begun),
            membership=self._link.membership,
            coordinator=self._link.coordinator,
            is_followed=self._followed is not None,
        )

    def _tell(self, number: int, following: int) -> None:
        """Report presence in round `number`; the next contribution is to round `following`."""
        every = self._link.membership.grace / BEATS
        with self._telling:
            now = time.monotonic()
            if self._told[:2] == (number, following) and now - self._told[2] < every:
                return
            self._told = (number, following, now)
            box = self.box(number)
            Meeting(box).tell(
                Presence(
                    trajectory=box.trajectory,
                    site=self._link.site,
                    round=following,
                    safe=self._safe(),
                    beat=time.time_ns(),
                    coordinator=self._link.coordinator,
                )
            )

    def safe_everywhere(self, number: int) -> int:
        """The last round that no site will ask for again, by their reports. A collective."""
        meeting = Meeting(self.box(number))

        def look() -> int:
            said = [meeting.heard(site) for site in self._link.sites]
            return min(one.safe if one else 0 for one in said)

        return self._from_first(look, other=0)
