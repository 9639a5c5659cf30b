"""Hook of a training at several sites (config/train/link.py): outer steps of one model, and messages between
roles at different sites.
"""

from collections.abc import Mapping

import numpy as np

from atelier.engine.config.error import ConfigError
from atelier.engine.config.run_file import Member, Training
from atelier.engine.config.train import Train
from atelier.engine.extensions.sites.answers import SitesApart
from atelier.engine.extensions.sites.clip import clip_values
from atelier.engine.extensions.sites.config.train.link import link_of
from atelier.engine.extensions.sites.link_meter import LinkMeter
from atelier.engine.extensions.sites.outer import OuterSteps
from atelier.engine.extensions.sites.outer_state import OuterState, outer_of, takes_part
from atelier.engine.extensions.sites.readers import asked_from
from atelier.engine.io.artifact import ArtifactInput
from atelier.engine.loop.build import BuildContext
from atelier.engine.loop.hooks import Hook, HookContext
from atelier.engine.loop.resume import checkpoints, students_first
from atelier.engine.loop.role_state import RoleState
from atelier.engine.loop.step import StepOutcome


class SeveralSites(Hook):
    """Outer steps and messages of this site's roles."""

    @classmethod
    def limits(cls, training: Training) -> dict[str, int]:
        """By teacher, the step from which students at other sites need it trained again. Raises ConfigError
        if `train.link.site` is empty.
        """
        link = link_of(training.train)
        if link.is_whole:
            given = f"this run must be at one of the sites {', '.join(link.sites)}"
            raise ConfigError("train.link.site", f"is not given; {given}", f"link.site={link.sites[0]}")
        return asked_from(training)

    def __init__(self, context: HookContext) -> None:
        super().__init__(context)
        training, members = context.training, context.members
        self._gang, self._link, self._members = context.gang, link_of(training.train), members
        self._meter, self._waited_s = LinkMeter(), 0.0
        self._apart = SitesApart(context, self._meter)
        self._outer = OuterSteps(context, self._meter)
        trained = [members[name] for name in students_first(training.members) if name in members]
        for member in trained if self._link.is_linked else ():
            if member.moves:
                finished = _finished(member.spec, training.members, context.build)
                member.attach(OuterState.of(self._link, member.weights, finished))
        self._outer.plan(trained)
        if self._outer.elastic is not None:
            context.data.samples_of_step = self._outer.elastic.places
        elif self._link.is_linked:
            context.data.samples_of_step = lambda clock: samples_of_site(training.train, clock)
        self.last = self._apart.end
        self.needs_all = self._link.is_linked or not self._apart.is_alone

    def start(self, clock: int) -> int:
        """`clock`, or the earlier step whose messages a finished teacher has not sent. A collective."""
        return clock if self._apart.is_alone else self._apart.begin(clock)

    def restored(self, member: RoleState) -> None:
        """Raise DataError unless the checkpoint follows the round log of `train.link.rounds`."""
        if takes_part(member) and self._link.rounds:
            place = checkpoints(member.segment(member.step))
            outer_of(member).log.check_follows(self._link.rounds, place)

    def before_step(self, clock: int) -> None:
        """Wait for messages of teachers, and for sites that are too far behind. A collective."""
        self._meter.begin()
        self._waited_s = self._apart.meet(clock)

    def sits_out(self, clock: int) -> bool:
        """Whether this site has no part in the round of the step. A collective."""
        return self._outer.sits_out(clock)

    def exchange(self, clock: int, outcomes: Mapping[str, StepOutcome], step_s: float) -> dict[str, float]:
        """Take the outer steps that are due, or send messages to students at other sites. A collective."""
        if self._link.is_linked:
            with self._gang.regions("link"):
                self._outer.take_due([self._members[name] for name in outcomes], step_s)
            for name, norm in self._outer.norms.items():
                outcomes[name].measured |= clip_values(norm, self._link.clip)
        elif not self._apart.is_alone:
            with self._gang.regions("link"):
                sent_s = self._apart.send(clock)
            return {"link_s": self._waited_s + sent_s, "link_wait_s": self._waited_s}
        return {}

    def timing(self, role: str) -> dict[str, float]:
        return self._meter.timing(role)

    def conclude(self, clock: int) -> None:
        """Wait for teachers at other sites that are trained again. A collective."""
        if not self._apart.is_alone:
            self._apart.conclude(clock)

    def finish(self) -> None:
        self._apart.finish()


def samples_of_site(train: Train, clock: int) -> np.ndarray:
    """This site's samples of a step, where sites train one model."""
    rows = link_of(train).rows
    first = train.progressive.samples_before(clock, sum(rows.values())) + link_of(train).first_row
    return np.arange(first, first + train.here().at(clock).global_batch)


def _finished(spec: Member, members: Mapping[str, Member], build: BuildContext) -> list[ArtifactInput]:
    """The finished models that a role learns from."""
    others = (members[teacher] for teacher in spec.role.teachers)
    return [build.inputs[each.init] for each in others if each.mode == "frozen"]
