"""Objects that extensions' hooks (hooks.py) attach to a role: state in its checkpoints, and access to its
outputs and gradients within a step.
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
    """An extension's addition to a role (`RoleState.attach`). `name`: key of its state in checkpoints."""

    name: str

    def state(self) -> Tree:
        """The state to checkpoint; empty if there is none."""
        return {}

    def restore(self, state: Nested, step: int) -> None:
        """Resume from the checkpoint of `step`, whose tensors are filled in place; `state` is empty if it has
        none.
        """

    def summary(self, steps: int) -> dict[str, Json]:
        """Entries for the model's record after `steps` steps."""
        return {}

    def files(self) -> dict[str, bytes]:
        """Files of the finished model beside its weights, by name."""
        return {}

    @property
    def tokens_elsewhere(self) -> int:
        """Tokens that the role has learned from in other gangs."""
        return 0


class WeightOwner(Protocol):
    """Owner of a stage's weights, gradients and optimiser states that are kept off the device. `take_weights`
    in an extension's weights.py takes them out of a model.
    """

    @property
    def folder(self) -> Path:
        """The folder of the weights and of their copies for checkpoints."""
        ...

    def settle(self) -> None:
        """Bring the tensors of `whole` up to date with the last step."""

    def whole(self) -> dict[str, dict[str, Tensor]]:
        """By name in the plain model: the weight ("weight") and its optimiser states."""
        ...

    def filled(self) -> None:
        """Called after the tensors of `whole` were filled."""

    def check_states(self, states: Mapping[str, Tensor], place: str) -> None:
        """Raise ConfigError at `place` for optimiser states, `<weight>.<state>`, that it cannot take."""

    def norms(self) -> dict[str, Tensor]:
        """The norms [X] of the parts of each weight's gradient, by name."""
        ...

    def update(self, rate: float, scale: float, *, is_good: bool) -> None:
        """Take the optimiser's step with gradients times min(`scale`, 1), or drop them if not `is_good`."""


class GradientHandler(Attachment):
    """Handles each micro-batch's gradients instead of adding them up. `measured`: metrics of the last
    step.
    """

    def __init__(self) -> None:
        self.measured: dict[str, float] = {}

    def begin(self, step: int, trajectory: str) -> None:
        """Begin a step of a trajectory; steps count from 0."""

    def add(self) -> None:
        """Take a micro-batch's gradients after its backward pass."""

    def finish(self) -> None:
        """After the last micro-batch, set the weights' gradients of the step. A collective."""

    def divisor(self, batch: Mapping[str, Tensor], counts: Counts) -> int:
        """The divisor of a micro-batch's summed token losses."""
        return counts.divisor


class Tap(Attachment):
    """Takes outputs of a role for others, in each micro-batch of a step in which they are needed. `lesson`:
    name of the lesson that it makes (engine/extensions/sites/lessons.py).
    """

    lesson: str
    is_asked = False  # needed in this step
    loss: float | None = None  # the role's loss in this step, once known

    def add(
        self, batch: Mapping[str, Tensor], clock: int, hidden_BTD: Tensor, head_weight_VD: Tensor
    ) -> None:
        """Take from a micro-batch of this rank's tokens."""

    def message(self, clock: int) -> dict[str, Tensor]:
        """The tensors of a step for students at other sites. A collective."""
        return {}


class Inbox(Protocol):
    """Receives a remote teacher's messages for a role."""

    def open(self, path: Path, place: str, step: int) -> None:
        """Read the verified message of the teacher's step (from 0) from the file `path`, called `place` in
        errors. Raises DataError if it does not fit the step.
        """
        ...


class RemoteOutputs(Protocol):
    """The outputs of a remote teacher for one step. `loss`: the teacher's, if known; `place`: name in
    errors.
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
        """The outputs for a micro-batch of this rank. Raises DataError if its samples or tokens differ."""
        ...
