"""Private training of adapters (DP-SGD, 1607.00133): the gradient of each row is clipped, noise is added to
their sum. What that says of a row: engine/plan/epsilon.py. Torch-free.
"""

from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from atelier.engine.config.base import Spec


class Visits(NamedTuple):
    """How often a training has the same row, at most."""

    times: int
    squares: int  # of how often a step has it, summed over the steps: it moves that step's sum as many times

    @staticmethod
    def of(epochs: int, *, rows: int, batch: int, is_aligned: bool) -> "Visits":
        """Of a shuffled pass over `rows` rows each epoch. Where an epoch ends inside a batch, a row may be
        its last one and the first of the next, twice in one step; `is_aligned`: it never does.
        """
        if batch <= rows:
            return Visits(epochs, epochs + (0 if is_aligned else 2 * (epochs // 2)))
        each = -(-batch // rows) + 1  # of a step
        return Visits(epochs, epochs * each)


class Privacy(Spec):
    """`kind=record`: a step's gradient is (sum of the rows' gradients, each of an L2 norm of at most `clip`,
    + normal noise of standard deviation `noise` x `clip`) / global_batch.

    The noise is as secret as its key. With `secret` the key is drawn from the operating system at the first
    step and lies in the checkpoints alone: a training that is killed goes on from one to the same bits, a
    second training of the same fingerprint, and one that was killed before its first checkpoint, ends with
    others. Without, it follows from train.seed: the same bits each time, and whoever reads the record can
    subtract the noise; no epsilon is claimed then.
    """

    kind: Literal["none", "record"] = Field(
        default="none", description="none, or record: a bound for what each row of the training changes"
    )
    clip: float = Field(
        default=1.0, gt=0, description="record: the L2 norm that a row's gradient has at most"
    )
    noise: float = Field(
        default=1.0, ge=0, description="record: standard deviation of the noise, as a multiple of clip"
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="record: the probability for which epsilon makes no statement"
    )
    secret: bool = Field(
        default=True,
        description="record: the noise's key is drawn by the operating system; false: follows from the seed",
    )

    @property
    def is_on(self) -> bool:
        return self.kind != "none"

    @property
    def has_epsilon(self) -> bool:
        """Whether a statement about rows can be made."""
        return self.is_on and self.noise > 0 and self.secret

    @model_validator(mode="after")
    def _acts(self) -> "Privacy":
        fields = type(self).model_fields
        for name in () if self.is_on else ("clip", "noise", "delta", "secret"):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"privacy.{name} does nothing with kind=none; kind=record has it")
        return self
