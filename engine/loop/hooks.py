"""The interface of extensions (engine/config/extensions.py) to a training. The file
engine/extensions/<name>/hook.py has a class `Extension`, a `Hook`. A training has one of each extension that
a kind of its roles is of. The loop calls it

    __init__      before the first checkpoint is read: it chooses its roles, and adds taps and inboxes to them
    begin         before a step: the groups of its own roles that take this step
    after_step    after the step of all other roles: its roles take theirs
    close         at the end, and where training stops

The state of a tap is part of its role's checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import extension_part

if TYPE_CHECKING:
    from atelier.engine.config.run_file import Training
    from atelier.engine.loop.counts import Counts
    from atelier.engine.loop.prefetch import StepData
    from atelier.engine.loop.role_state import RoleState
    from atelier.engine.loop.step import StepGroup, StepOutcome
    from atelier.engine.loop.training_data import TrainingData
    from atelier.engine.parallel.gang import Gang

Learned = tuple[dict[str, "StepOutcome"], dict[str, "Counts"]]  # by role: outcomes, and what was read


class Tap(Protocol):
    """Takes what others need from a role's outputs, in each micro-batch of the steps in which it is asked."""

    @property
    def name(self) -> str:
        """Of its state in the role's checkpoint."""
        ...

    @property
    def is_asked(self) -> bool:
        """At this step."""
        ...

    def add(
        self, batch: Mapping[str, Tensor], clock: int, hidden_BTD: Tensor, head_weight_VD: Tensor
    ) -> None:
        """Take from a micro-batch of this rank's tokens."""
        ...

    def message(self, clock: int) -> dict[str, Tensor]:
        """The tensors of a step that are sent to students at other sites. A collective."""
        ...

    def state(self) -> dict[str, Tree]:
        """To be checkpointed; empty where there is nothing."""
        ...

    def restore(self, state: Nested) -> None: ...


class Inbox(Protocol):
    """Where a role gets what a teacher at another site sends of a step."""

    def open(self, path: Path, place: str, step: int) -> None:
        """Read the verified message of the teacher's step, from 0, in the file `path`, which messages call
        `place`. Raises DataError for a message that does not fit the step.
        """
        ...


class Hook:
    """The base of all hooks; it does nothing. `roles`: those whose steps the extension takes."""

    def __init__(
        self, training: "Training", members: Mapping[str, "RoleState"], gang: "Gang", data: "TrainingData"
    ) -> None:
        self.roles: frozenset[str] = frozenset()

    def begin(self, clock: int) -> "list[StepGroup]":
        """The groups of its roles that take this step."""
        return []

    def after_step(
        self, groups: "list[StepGroup]", clock: int, data: "StepData", counts: "Counts"
    ) -> Learned:
        """Take the step of these groups; what came of it. A collective."""
        return {}, {}

    def close(self) -> None:
        """End threads; let go of files."""


class Hooks:
    """The hooks of the extensions that the roles of a training use, here or at other sites. `others`: the
    roles whose steps no extension takes.
    """

    def __init__(
        self, training: "Training", members: Mapping[str, "RoleState"], gang: "Gang", data: "TrainingData"
    ) -> None:
        used = sorted({name for member in training.members.values() for name in member.role.extensions})
        modules = [
            module for name in used if (module := extension_part(name, "hook", "Extension")) is not None
        ]
        self._hooks: list[Hook] = [module.Extension(training, members, gang, data) for module in modules]
        theirs: set[str] = set()
        for hook in self._hooks:
            if twice := sorted(theirs & hook.roles):
                raise ConfigError(
                    f"roles.{twice[0]}", "two extensions take its steps", "leave one of them out"
                )
            theirs |= hook.roles
        self.others = {name: member for name, member in members.items() if name not in theirs}

    def begin(self, clock: int) -> "list[list[StepGroup]]":
        """By hook, the groups that take this step."""
        return [hook.begin(clock) for hook in self._hooks]

    def after_step(
        self, later: "list[list[StepGroup]]", clock: int, data: "StepData", counts: "Counts"
    ) -> Learned:
        """Have each hook take the step of its groups. A collective."""
        outcomes: dict[str, StepOutcome] = {}
        read: dict[str, Counts] = {}
        for hook, groups in zip(self._hooks, later, strict=False):  # of a step that is passed over, none
            found, own = hook.after_step(groups, clock, data, counts)
            outcomes |= found
            read |= own
        return outcomes, read

    def close(self) -> None:
        for hook in self._hooks:
            hook.close()
