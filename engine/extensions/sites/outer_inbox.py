"""Wait for, verify and open the contributions of all sites in the mailbox."""

import time
from collections.abc import Callable, Collection, Mapping

from atelier.engine.checkpoint.collective_call import all_or_none
from atelier.engine.config.error import DataError, StoppedError
from atelier.engine.extensions.sites.codec_choice import CodecChoice, RoundPlan
from atelier.engine.extensions.sites.config.train.link import link_of
from atelier.engine.extensions.sites.contribution import Layout, StoredContribution, check_form
from atelier.engine.extensions.sites.coordinator import ADDED, BEGAN
from atelier.engine.extensions.sites.long_wait import LongWait
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.messages import BODY, Contribution
from atelier.engine.extensions.sites.outer_state import outer_of
from atelier.engine.extensions.sites.round_log import RoundLine
from atelier.engine.io.storage import fetch, is_local, join, local_path, verify
from atelier.engine.loop.hooks import HookContext
from atelier.engine.loop.role_state import RoleState

LOOK_EVERY = 0.2  # seconds between looks for messages
LATER_EVERY = 5.0  # seconds between checks for messages that will never arrive


class OuterInbox:
    """Contributions of a training's sites, as this rank reads them."""

    def __init__(self, context: HookContext, choice: CodecChoice) -> None:
        self._link, self._gang, self._stop = link_of(context.training.train), context.gang, context.stop
        self._scratch, self._choice, self._say = context.build.scratch, choice, context.warn

    def heads(
        self,
        box: Mailbox,
        number: int,
        member: RoleState,
        sites: Collection[str],
        beat: Callable[[], None] | None,
    ) -> dict[str, Contribution]:
        """Wait for the messages of all `sites` and return their heads. `beat` is called at each look. A
        collective. Raises StoppedError when a stop is asked, DataError for a message that will never arrive.
        """
        heads: dict[str, Contribution] = {}
        look_again, wait = 0.0, LongWait(self._say)

        def look() -> tuple[int, bool]:
            """The messages that this rank lacks, and whether a stop was asked."""
            nonlocal look_again
            missing = [site for site in sorted(sites) if site not in heads]
            there = {site: head for site in missing if (head := box.contribution(number, site)) is not None}
            heads.update(there)
            if len(there) < len(missing) and time.monotonic() >= look_again:
                self._check_missing(box, number, member, [site for site in missing if site not in there])
                look_again = time.monotonic() + LATER_EVERY
            return len(sites) - len(heads), self._stop.is_asked

        while True:
            late, is_asked = all_or_none(self._gang, look, _of_all)
            if not late:
                return heads
            others = ", ".join(site for site in sorted(sites) if site not in heads)
            if wait.is_due:
                wait.say(f"{others or 'another rank'}, in round {number} of {box.trajectory[:16]}")
            if is_asked:
                raise StoppedError(
                    f"stopped while {member.name} waited for {others or 'others'} in round {number}, after"
                    f" step {member.step}; it continues from its last checkpoint"
                )
            if beat is not None:
                beat()
            time.sleep(LOOK_EVERY)

    def _check_missing(self, box: Mailbox, number: int, member: RoleState, sites: list[str]) -> None:
        """Raise DataError if a missing message will never arrive, since its site has sent later ones."""
        boxes = [Mailbox(self._link.mailbox, each.fingerprint) for each in member.spec.segments]
        later = {each: where for where in boxes for each in where.rounds() if each > number}  # branches too
        for site in sites:
            ahead = {each: there for each, there in later.items() if there.read(each, site) is not None}
            if ahead and box.contribution(number, site) is None:  # not between two looks
                places = " and ".join(sorted({box.place, *(there.place for there in ahead.values())}))
                raise DataError(
                    f"{box.folder(number, site)}: is gone, {site} is in round {max(ahead)}: this site's"
                    " checkpoints are too old to continue, or the mailbox is of an earlier run; remove"
                    f" {places} at all sites and start all again"
                )

    def open(
        self,
        box: Mailbox,
        heads: Mapping[str, Contribution],
        member: RoleState,
        plan: RoundPlan,
        line: RoundLine | None = None,
    ) -> dict[str, StoredContribution]:
        """The verified contributions by site. `line`: the decision on the round, if there is one. Raises
        DataError or DamageError for one that fails a check.
        """
        result: dict[str, StoredContribution] = {}
        outer = outer_of(member)
        for site, head in sorted(heads.items()):
            place, fragment = join(box.folder(head.round, site), BODY), plan.rounds.fragment(head.round)
            if line is not None and (head.codec, head.body.sha256) != (line.codecs[site], line.sha256[site]):
                raise DataError(
                    f"{place}: differs from the contribution in the decision on round {head.round}: {site}"
                    " sent two from the same steps; continue there in the layout of the first"
                )
            if head.before != outer.pending.get(head.round, outer.added):
                raise DataError(f"{place}: {site} {ADDED if head.round > 1 else BEGAN}")
            code = member.spec.code_elsewhere
            check_form(head, place, codecs=self._link.codecs, fragment=fragment, code=code)
            self._choice.check(head.round, site, head.codec, head.body.sha256, place)
            result[site] = self.stored(box, head, plan.layouts[fragment])
        return result

    def stored(self, box: Mailbox, head: Contribution, layout: Layout) -> StoredContribution:
        """A contribution in the mailbox. Raises DamageError if its body does not match its head."""
        place = join(box.folder(head.round, head.site), BODY)
        if is_local(place):
            path = local_path(place)
        else:
            path = self._scratch / f"link-{self._gang.rank}" / head.site / BODY
            fetch(place, path)
        verify(str(path), head.body, place)
        return StoredContribution(path, head.codec, layout, place)


def _of_all(found: list[tuple[int, bool]]) -> list[tuple[int, bool]]:
    """For each rank: the most messages that any rank lacks, and whether any was asked to stop."""
    return [(max(late for late, _ in found), any(asked for _, asked in found))] * len(found)
