"""What hooks of extensions (hooks.py) attach to a role: state in its checkpoints, and places of a step where
they read its outputs or take its gradients.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor

from atelier.engine.checkpoint.state import Nested, Tree
from atelier.engine.config.base import Json
from atelier.engine.loop.counts import Counts
from atelier.engine.objective.chunked import Side


class Attachment:
    """What an extension adds to a role (`RoleState.attach`). `name`: of its state in the checkpoints."""

    name: str

    def state(self) -> Tree:
        """To be checkpointed; empty where there is nothing."""
        return {}

    def restore(self, state: Nested, step: int) -> None:
        """Go on from the checkpoint of `step`, whose tensors are filled in place; `state` is empty where it
        has none.
        """

    def summary(self, steps: int) -> dict[str, Json]:
        """Entries of the model's record after so many steps."""
        return {}

    def files(self) -> dict[str, bytes]:
        """Files of the finished model beside its weights, by name."""
        return {}

    @property
    def tokens_elsewhere(self) -> int:
        """Tokens that the role has learned from in other gangs."""
        return 0


class WeightOwner(Protocol):
    """Owns weights of a stage that are not on the device, with their gradients and optimiser states. The file
    weights.py of an extension has `take_weights`, which takes them out of a model.
    """

    @property
    def folder(self) -> Path:
        """Where it has them; copies for checkpoints go there too."""
        ...

    def settle(self) -> None:
        """Bring what `whole` returns up to the last step."""

    def whole(self) -> dict[str, dict[str, Tensor]]:
        """By name in the plain model: the weight ("weight") and its optimiser states."""
        ...

    def filled(self) -> None:
        """What `whole` returned was filled."""

    def check_states(self, states: Mapping[str, Tensor], place: str) -> None:
        """Raise ConfigError at `place` for an optimiser's states, `<weight>.<state>`, that it cannot take."""

    def norms(self) -> dict[str, Tensor]:
        """By name, the norms [X] of the parts of its gradients, each alone."""
        ...

    def update(self, rate: float, scale: float, *, is_good: bool) -> None:
        """Take the optimiser's step with gradients times `scale`, if that is below 1; or drop them."""


class GradientHandler(Attachment):
    """Handles the gradients of each micro-batch itself, in place of adding them up. `measured`: metrics of
    the last step.
    """

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}

    def begin(self, step: int, trajectory: str) -> None:
        """Begin the step of this number, from 0, of a trajectory."""

    def add(self) -> None:
        """Take the gradients of a micro-batch, after its backward pass."""

    def finish(self) -> None:
        """After the last micro-batch, give the weights the gradients of the step. A collective."""

    def divisor(self, batch: Mapping[str, Tensor], counts: Counts) -> int:
        """Divides the summed loss of a micro-batch's tokens."""
        return counts.divisor


class Tap(Attachment):
    """Takes what others need from a role's outputs, in each micro-batch of the steps in which it is asked.
    `lesson`: for whom (engine/extensions/sites/lessons.py).
    """

    lesson: str
    is_asked = False  # at this step
    loss: float | None = None  # the role's in this step, once it is known

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


class RemoteOutputs(Protocol):
    """The outputs of a teacher that is not in this gang, for one step. `loss`: the teacher's, if it is known;
    `place`: what messages call them.
    """

    @property
    def loss(self) -> float | None: ...

    @property
    def place(self) -> str: ...

    @property
    def measured(self) -> dict[str, float]:
        """Metrics of the step."""
        ...

    def side(self, batch: Mapping[str, Tensor]) -> Side:
        """Those for a micro-batch of this rank. Raises DataError where it has other samples or tokens."""
        ...
