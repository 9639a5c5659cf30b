"""The interface between extensions (engine/config/extensions.py) and a training.

engine/extensions/<name>/hook.py has a class with the base `Hook`. A training has one hook for each extension
that defines a kind of its roles or a key in its configuration or layout. The loop calls

    limits        before roles are built: the steps from which some are trained again
    __init__      before the first checkpoint is read: chooses its roles and attaches objects to roles
    start         to get the step at which this gang begins; restored: a role is at its checkpoint
    before_step   to wait for the step's inputs; timed: compute times of each rank in the step before
    begin         to get the groups of its own roles that take this step; sits_out: whether to leave the step
    out
    after_step    after the step of all other roles: its roles take theirs
    exchange      after the step of all roles
    conclude      after the last step, before models are published; finish: after that
    close         at the end, and when training stops

The state of objects attached to a role is part of the role's checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import extension_class
from atelier.engine.config.sections import extensions_of

if TYPE_CHECKING:
    from atelier.engine.config.parallel import Parallel
    from atelier.engine.config.run_file import Training
    from atelier.engine.loop.build import BuildContext
    from atelier.engine.loop.counts import Counts
    from atelier.engine.loop.prefetch import StepData
    from atelier.engine.loop.role_state import RoleState
    from atelier.engine.loop.step import StepGroup, StepOutcome
    from atelier.engine.loop.stop import StopRequest
    from atelier.engine.loop.training_data import TrainingData
    from atelier.engine.parallel.gang import Gang

Learned = tuple[dict[str, "StepOutcome"], dict[str, "Counts"]]  # by role: outcomes, and counts of its data


@dataclass(frozen=True)
class HookContext:
    """The objects that a hook works with. `members`: the roles of this gang; `warn`: print a warning."""

    training: "Training"
    members: Mapping[str, "RoleState"]
    build: "BuildContext"
    data: "TrainingData"
    stop: "StopRequest"
    warn: Callable[[str], None]

    @property
    def gang(self) -> "Gang":
        return self.build.gang


class Hook:
    """Base class of hooks; does nothing. `roles`: roles whose steps the extension takes; `last`: the last
    step that others than the roles here need; `needs_all`: others wait for the roles here.
    """

    last = 0
    needs_all = False

    @classmethod
    def limits(cls, training: "Training") -> dict[str, int]:
        """The latest step from which each role may resume. Called on the first rank."""
        return {}

    def __init__(self, context: HookContext) -> None:
        self.roles: frozenset[str] = frozenset()

    def start(self, clock: int) -> int:
        """The step at which the gang begins: `clock` or an earlier one. A collective."""
        return clock

    def restored(self, member: "RoleState") -> None:
        """Called when a role is at its checkpoint."""

    def before_step(self, clock: int) -> None:
        """Wait for the step's inputs. A collective."""

    def timed(self, clock: int, times_us: Sequence[int]) -> None:
        """Microseconds that each rank computed in the step before `clock`; 0 = not measured."""

    def begin(self, clock: int) -> "list[StepGroup]":
        """The groups of its roles that take this step."""
        return []

    def sits_out(self, clock: int) -> bool:
        """Whether all roles leave this step out. A collective."""
        return False

    def after_step(
        self, groups: "list[StepGroup]", clock: int, data: "StepData", counts: "Counts"
    ) -> Learned:
        """Take the step of these groups; returns the results. A collective."""
        return {}, {}

    def exchange(self, clock: int, outcomes: Mapping[str, "StepOutcome"], step_s: float) -> dict[str, float]:
        """Called after the step of all roles, with their outcomes; returns times for the metric lines. A
        collective. `step_s`: seconds of the step, 0 if it is not representative.
        """
        return {}

    def timing(self, role: str) -> dict[str, float]:
        """Times of a role's step for its metric line."""
        return {}

    def conclude(self, clock: int) -> None:
        """Wait for others after the last step, before models are published. A collective. Raises StoppedError
        if a stop is requested while it waits.
        """

    def finish(self) -> None:
        """Called after all models are published."""

    def close(self) -> None:
        """End threads and release files."""


def hook_classes(training: "Training", layout: "Parallel") -> list[type[Hook]]:
    """The hooks of the extensions that a training uses: by a kind of its roles, here or at other sites, or by
    a key of its settings or layout.
    """
    kinds = (member.role.extensions for member in training.members.values())
    names = sorted(extensions_of(training.train, layout).union(*kinds))
    return [found for name in names if (found := extension_class(name, "hook", Hook)) is not None]


def limits_of(training: "Training", layout: "Parallel") -> dict[str, int]:
    """By role, the latest step from which extensions let it resume."""
    found: dict[str, int] = {}
    for each in hook_classes(training, layout):
        for name, step in each.limits(training).items():
            found[name] = min(step, found.get(name, step))
    return found


class Hooks:
    """The hooks of a training. `others`: roles whose steps no extension takes."""

    def __init__(self, context: HookContext) -> None:
        self._hooks = [each(context) for each in hook_classes(context.training, context.build.layout)]
        theirs: set[str] = set()
        for hook in self._hooks:
            if twice := sorted(theirs & hook.roles):
                raise ConfigError(
                    f"roles.{twice[0]}", "two extensions take its steps", "leave one of them out"
                )
            theirs |= hook.roles
        self.others = {name: member for name, member in context.members.items() if name not in theirs}

    @property
    def last(self) -> int:
        """The last step that others need."""
        return max((hook.last for hook in self._hooks), default=0)

    @property
    def needs_all(self) -> bool:
        """Whether others wait for the roles here."""
        return any(hook.needs_all for hook in self._hooks)

    def start(self, clock: int) -> int:
        """The step at which the gang begins. A collective."""
        for hook in self._hooks:
            clock = hook.start(clock)
        return clock

    def restored(self, member: "RoleState") -> None:
        for hook in self._hooks:
            hook.restored(member)

    def before_step(self, clock: int) -> None:
        """Wait for what the step needs. A collective."""
        for hook in self._hooks:
            hook.before_step(clock)

    def timed(self, clock: int, times_us: Sequence[int]) -> None:
        """Pass on how long each rank computed in the step before `clock`."""
        for hook in self._hooks:
            hook.timed(clock, times_us)

    def begin(self, clock: int) -> "list[list[StepGroup]]":
        """The groups that take this step, by hook."""
        return [hook.begin(clock) for hook in self._hooks]

    def sits_out(self, clock: int) -> bool:
        """Whether all roles leave this step out. A collective."""
        return any([hook.sits_out(clock) for hook in self._hooks])

    def after_step(
        self, later: "list[list[StepGroup]]", clock: int, data: "StepData", counts: "Counts"
    ) -> Learned:
        """Let each hook take the step of its groups. A collective."""
        outcomes: dict[str, StepOutcome] = {}
        read: dict[str, Counts] = {}
        for hook, groups in zip(self._hooks, later, strict=False):  # none for a step that is passed over
            found, own = hook.after_step(groups, clock, data, counts)
            outcomes |= found
            read |= own
        return outcomes, read

    def exchange(self, clock: int, outcomes: Mapping[str, "StepOutcome"], step_s: float) -> dict[str, float]:
        """Run after the step of all roles; times for the metric lines. A collective."""
        found: dict[str, float] = {}
        for hook in self._hooks:
            found |= hook.exchange(clock, outcomes, step_s)
        return found

    def timing(self, role: str) -> dict[str, float]:
        """Times of a role's step for its metric line."""
        return {key: value for hook in self._hooks for key, value in hook.timing(role).items()}

    def conclude(self, clock: int) -> None:
        """Wait for others before models are published. A collective."""
        for hook in self._hooks:
            hook.conclude(clock)

    def finish(self) -> None:
        for hook in self._hooks:
            hook.finish()

    def close(self) -> None:
        for hook in self._hooks:
            hook.close()
