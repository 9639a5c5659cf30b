"""Setting train.privacy: private training of adapters (DP-SGD, 1607.00133). Each row's gradient is clipped,
and noise is added to their sum. engine/extensions/privacy/epsilon.py computes the guarantee. Torch-free.
"""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from atelier.engine.config.base import Given, Json
from atelier.engine.config.error import ConfigError
from atelier.engine.config.section import Section


class Privacy(Section):
    """A bound on each row's effect, for adapters; none by default.

    `kind=record`: a step's gradient is (sum of the rows' gradients, each of L2 norm at most `clip`, + normal
    noise of standard deviation `noise` x `clip`) / global_batch.

    The noise is as secret as its key. With `secret` the operating system draws the key at the first step, and
    only checkpoints store it: a killed training resumes from one to the same bits; a second training of the
    same fingerprint, or one killed before its first checkpoint, ends with other bits. Without `secret` the
    key follows from train.seed: the same bits each time, and anyone who reads the record can subtract the
    noise, so no epsilon is claimed.
    """

    takes_gradients: ClassVar[bool] = True
    OFF: ClassVar[str] = "kind=none"
    ABSENT: ClassVar[dict[str, Json]] = {
        "kind": "none", "clip": 1.0, "noise": 1.0, "delta": 1e-5, "secret": True
    }  # fmt: skip

    kind: Literal["none", "record"] = Field(
        default="none", description="none, or record: bound the effect of each training row"
    )
    clip: float = Field(default=1.0, gt=0, description="record: maximum L2 norm of a row's gradient")
    noise: float = Field(
        default=1.0, ge=0, description="record: standard deviation of the noise, as a multiple of clip"
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="record: probability that epsilon does not cover"
    )
    secret: bool = Field(
        default=True,
        description="record: true = the operating system draws the noise's key; false = from the seed",
    )

    @property
    def is_on(self) -> bool:
        return self.kind != "none"

    @property
    def has_epsilon(self) -> bool:
        """Whether an epsilon for rows can be stated."""
        return self.is_on and self.noise > 0 and self.secret

    @classmethod
    def fill(cls, own: Given, given: dict[str, Given]) -> dict[str, Given]:
        """Set `micro_batch=auto` to 1, because rows are clipped one by one."""
        kind = own.get("kind") if isinstance(own, dict) else getattr(own, "kind", "none")
        is_open = given.get("micro_batch", "auto") == "auto"
        return {**given, "micro_batch": 1} if is_open and kind == "record" else given

    def check_scratch(self) -> None:
        """Raise ConfigError: it supports only adapters."""
        raise ConfigError(
            "finetune.scratch",
            "true trains all weights of a network, but train.privacy supports only adapters",
            "finetune.scratch=false",
        )

    @model_validator(mode="after")
    def _acts(self) -> "Privacy":
        fields = type(self).model_fields
        for name in () if self.is_on else ("clip", "noise", "delta", "secret"):
            if getattr(self, name) != fields[name].default:
                raise ValueError(f"privacy.{name} does nothing with kind=none; kind=record has it")
        return self
