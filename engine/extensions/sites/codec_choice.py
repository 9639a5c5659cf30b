"""Choose the codec of this site's contribution: the link's only one; else that of a contribution that is
already in the mailbox; else that of the round log; else the chooser's (chooser.py).
"""

import itertools
from collections.abc import Sequence
from functools import cached_property

from atelier.engine.checkpoint.collective_call import all_or_none
from atelier.engine.config.error import ConfigError, DataError
from atelier.engine.extensions.sites.chooser import CodecChooser
from atelier.engine.extensions.sites.config.codec import Codec
from atelier.engine.extensions.sites.config.train.link import Link
from atelier.engine.extensions.sites.encoded import Layout, sizes_of
from atelier.engine.extensions.sites.mailbox import Mailbox
from atelier.engine.extensions.sites.rates import rate_to
from atelier.engine.extensions.sites.round_log import RoundLine, read_log
from atelier.engine.extensions.sites.rounds import Rounds
from atelier.engine.loop.role_state import RoleState
from atelier.engine.parallel.gang import Gang

SMOOTHING = 0.2  # weight of a step's time in the mean of steps


class RoundPlan:
    """The rounds of a role and the weights of each fragment; fragment 0 is all weights. Raises ConfigError
    unless each codec is smaller than the one before.
    """

    def __init__(self, rounds: Rounds, layouts: list[Layout], codecs: Sequence[Codec]) -> None:
        self.rounds, self.layouts = rounds, layouts
        self.sizes = sizes_of(codecs, layouts)
        whole = [(sizes[0], text) for text, sizes in self.sizes.items()]
        for (more, first), (less, second) in itertools.pairwise(whole):
            if more <= less:
                raise ConfigError(
                    "train.link.choose",
                    f"{first} takes {more} bytes and {second} behind it {less}",
                    "the least lossy first, each smaller than the one before",
                )


class CodecChoice:
    """The choices of one training on this rank; rank 0 decides."""

    def __init__(self, link: Link, gang: Gang) -> None:
        self._link, self._gang = link, gang
        self._chooser = CodecChooser(delay=link.delay, interval=link.interval, stall=link.stall)
        self._roles, self._last = 1, dict[str, int]()  # the last choice by role

    def begin(self, roles: int) -> None:
        """`roles`: the number of roles whose messages share the link."""
        self._roles = max(1, roles)

    @cached_property
    def _log(self) -> dict[int, RoundLine]:
        return read_log(self._link.rounds) if self._link.rounds else {}

    def trained(self, step_s: float) -> None:
        """Record the seconds of a step; 0 = they are not typical."""
        if step_s:
            before = self._chooser.step_s or step_s
            self._chooser.step_s = before + SMOOTHING * (step_s - before)

    def took(self, codec: Codec, seconds: float) -> None:
        """Record the seconds of encoding and writing a contribution."""
        self._chooser.codec_s[self._link.codecs.index(codec)] = seconds * self._roles

    def codec(self, number: int, member: RoleState, box: Mailbox, plan: RoundPlan) -> Codec:
        """The codec of a role's contribution to a round. A collective. Raises DataError if the round log has
        no such round, or a codec that `choose` has not.
        """
        if not self._link.choose:
            return self._link.codec

        def decide() -> int:
            return self._decided(number, member, box, plan) if self._gang.is_first else 0

        found = all_or_none(self._gang, decide, lambda found: found[:1] * self._gang.world)
        self._last[member.name] = found
        return self._link.codecs[found]

    def _decided(self, number: int, member: RoleState, box: Mailbox, plan: RoundPlan) -> int:
        own = self._link.site
        if (there := box.contribution(number, own)) is not None:
            codec = there.codec
        elif self._link.rounds:
            codec = self._logged(number, own)
        else:
            fragment = plan.rounds.fragment(number)
            sizes = [plan.sizes[each.text][fragment] * self._roles for each in self._link.codecs]
            peers = [site for site in self._link.sites if site != own]
            rates = {site: rate_to(self._link.mailbox, site) for site in peers}
            return self._chooser.choose(sizes, rates, self._last.get(member.name))
        if codec not in self._link.codecs:
            raise DataError(
                f"train.link.choose: round {number} of {own} has codec {codec.text}, which is not in the list"
            )
        return self._link.codecs.index(codec)

    def _logged(self, number: int, site: str) -> Codec:
        line = self._log.get(number)
        if line is None or site not in line.codecs:
            raise DataError(f"{self._link.rounds}: has no round {number} of {site}")
        return line.codecs[site]

    def check(self, number: int, site: str, codec: Codec, sha256: str, place: str) -> None:
        """Raise DataError if the training follows a round log with another contribution of a site."""
        if not self._link.rounds:
            return
        logged = self._logged(number, site)
        if logged != codec:
            raise DataError(f"{place}: has codec {codec.text}, and in {self._link.rounds} {logged.text}")
        if self._log[number].sha256.get(site) != sha256:
            raise DataError(
                f"{place}: has other bits than in {self._link.rounds}; repeat it with the layouts, machines"
                " and code that made it"
            )
