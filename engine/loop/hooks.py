"""The interface of extensions (engine/config/extensions.py) to a training. The file
engine/extensions/<name>/hook.py has a class `Extension`, a `Hook`. A training has one of each extension that
a kind of its roles is of, or that has a key in its configuration. The loop calls it

    __init__      before the first checkpoint is read: it chooses its roles and attaches what it needs
    begin         before a step: the groups of its own roles that take this step
    after_step    after the step of all other roles: its roles take theirs
    close         at the end, and where training stops

The state of what it attaches to a role is part of the role's checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.base import Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.kind_files import extension_part
from atelier.engine.config.parallel import Parallel
from atelier.engine.config.sections import extensions_of

if TYPE_CHECKING:
    from atelier.engine.config.run_file import Training
    from atelier.engine.loop.counts import Counts
    from atelier.engine.loop.prefetch import StepData
    from atelier.engine.loop.role_state import RoleState
    from atelier.engine.loop.step import StepGroup, StepOutcome
    from atelier.engine.loop.training_data import TrainingData
    from atelier.engine.parallel.gang import Gang

Learned = tuple[dict[str, "StepOutcome"], dict[str, "Counts"]]  # by role: outcomes, and what was read


class Attachment:
    """What an extension adds to a role (`RoleState.attach`). `name`: of its state in the checkpoints."""

    name: str

    def state(self) -> Tree:
        """To be checkpointed; empty where there is nothing."""
        return {}

    def restore(self, state: Nested, step: int) -> None:
        """Go on from the checkpoint of `step`; `state` is empty where it has none."""

    def summary(self, steps: int) -> dict[str, Json]:
        """For the summary in the record of a model that was trained so many steps."""
        return {}


class Gradients(Attachment):
    """Takes the gradients of each micro-batch in place of their sum. `measured`: metrics of the last step."""

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}

    def begin(self, step: int, trajectory: str) -> None:
        """Begin the step of this number, from 0, of a trajectory."""

    def add(self) -> None:
        """Take the gradients of a micro-batch, after its backward pass."""

    def finish(self) -> None:
        """After the last micro-batch, give the weights the gradients of the step. A collective."""

    def divisor(self, batch: Mapping[str, Tensor], counts: "Counts") -> int:
        """What the sum of the losses of a micro-batch's tokens is divided by."""
        return counts.divisor


class Tap(Attachment):
    """Takes what others need from a role's outputs, in each micro-batch of the steps in which it is asked.
    `lesson`: for whom (engine/link/lessons.py).
    """

    lesson: str
    is_asked = False  # at this step

    def add(
        self, batch: Mapping[str, Tensor], clock: int, hidden_BTD: Tensor, head_weight_VD: Tensor
    ) -> None:
        """Take from a micro-batch of this rank's tokens."""

    def message(self, clock: int) -> dict[str, Tensor]:
        """The tensors of a step that are sent to students at other sites. A collective."""
        return {}


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
    """The hooks of the extensions that a training uses: by a kind of its roles, here or at other sites, or by
    a key of its settings. `others`: the roles whose steps no extension takes.
    """

    def __init__(
        self,
        training: "Training",
        layout: Parallel,
        members: Mapping[str, "RoleState"],
        gang: "Gang",
        data: "TrainingData",
    ) -> None:
        used = extensions_of(training.train, layout).union(
            *(member.role.extensions for member in training.members.values())
        )
        modules = [
            module
            for name in sorted(used)
            if (module := extension_part(name, "hook", "Extension")) is not None
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
