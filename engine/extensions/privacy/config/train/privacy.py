"""Private training of adapters (DP-SGD, 1607.00133): the gradient of each row is clipped, noise is added to
their sum. What that says of a row: engine/extensions/privacy/epsilon.py. Torch-free.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Given, Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.section import Section


class Privacy(Section):
    """A bound for what each row changes, for adapters; none by default.

    `kind=record`: a step's gradient is (sum of the rows' gradients, each of an L2 norm of at most `clip`,
    + normal noise of standard deviation `noise` x `clip`) / global_batch.

    The noise is as secret as its key. With `secret` the key is drawn from the operating system at the first
    step and lies in the checkpoints alone: a training that is killed goes on from one to the same bits, a
    second training of the same fingerprint, and one that was killed before its first checkpoint, ends with
    others. Without, it follows from train.seed: the same bits each time, and whoever reads the record can
    subtract the noise; no epsilon is claimed then.
    """

    takes_gradients: ClassVar[bool] = True
    OFF: ClassVar[str] = "kind=none"
    ABSENT: ClassVar[dict[str, Json]] = {
        "kind": "none", "clip": 1.0, "noise": 1.0, "delta": 1e-5, "secret": True
    }  # fmt: skip

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

    @classmethod
    def fill(cls, own: Given, given: dict[str, Given]) -> dict[str, Given]:
        """`micro_batch=auto` is 1: rows are clipped one by one."""
        kind = own.get("kind") if isinstance(own, dict) else getattr(own, "kind", "none")
        is_open = given.get("micro_batch", "auto") == "auto"
        return {**given, "micro_batch": 1} if is_open and kind == "record" else given

    def check_scratch(self) -> None:
        """As the base's: it is for adapters."""
        raise ConfigError(
            "finetune.scratch",
            "true: the network from random weights trains all of them, and train.privacy is for adapters",
            "finetune.scratch=false",
        )

    @model_validator(mode="after")
    def _acts(self) -> "Privacy":
        fields = type(self).model_fields
        for name in () if self.is_on else ("clip", "noise", "delta", "secret"):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"privacy.{name} does nothing with kind=none; kind=record has it")
        return self
