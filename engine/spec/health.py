"""Health of a training: what happens to a step that went wrong, and when a rank is stuck, slow or damaged.

Decisions are made from numbers that all ranks share, and what they are made of is in the role's checkpoint.
Torch-free.
"""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.config import JsonDict

from atelier.engine.spec.base import Spec

LAYOUT: JsonDict = {"layout": True}
Bad = Literal["", "nan", "spike"]
Action = Literal["skip", "rollback", "stop"]


class Health(Spec):
    nan: Action = Field(
        default="skip",
        description=(
            "a step whose loss or gradient is not finite: skip its update, rollback to a checkpoint before"
            " it, or stop; a role with a teacher skips where others roll back"
        ),
    )
    spike: Literal["off", "skip", "rollback", "stop"] = Field(
        default="off",
        description="a step whose loss or gradient norm spikes: off, or as for nan",
    )
    spike_sigmas: float = Field(
        default=6.0,
        ge=0,
        description="spike: a loss so many standard deviations above its average, and spike_nats as well",
    )
    spike_nats: float = Field(default=0.5, ge=0, description="spike: a loss so many nats above its average")
    spike_norm: float = Field(
        default=0.0, ge=0, description="spike: a gradient norm so many times its average; 0 = not looked at"
    )
    spike_after: int = Field(default=20, ge=1, description="spike: steps that are seen before one is judged")
    pass_over: int = Field(
        default=10,
        ge=1,
        description="rollback: so many steps, the bad one the last, are passed over the next time",
    )
    rollbacks: int = Field(
        default=3,
        ge=0,
        description="rollbacks of a role until its training stops",
        json_schema_extra=LAYOUT,
    )
    patience: int = Field(
        default=3,
        ge=1,
        description="skipped steps in a row until training stops",
        json_schema_extra=LAYOUT,
    )
    hang_s: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        default="auto",
        description=(
            "seconds without a sign of any rank until the gang is ended and begun again; auto = 20 times the"
            " longest step, 600 at least; 0 = never"
        ),
        json_schema_extra=LAYOUT,
    )
    digest_every: int = Field(
        default=0,
        ge=0,
        description="steps between comparisons of the weights' copies; 0 = only before each checkpoint",
        json_schema_extra=LAYOUT,
    )
    straggler: float = Field(
        default=2.0,
        ge=0,
        description="a rank that computes so many times as long as the median one is named; 0 = none is",
        json_schema_extra=LAYOUT,
    )

    @property
    def rolls_back(self) -> bool:
        return "rollback" in (self.nan, self.spike)

    def action(self, bad: Bad, *, has_teacher: bool) -> Action:
        """What is done about a bad step. A student's trouble never moves its teacher: it skips."""
        chosen = self.spike if bad == "spike" and self.spike != "off" else self.nan
        return "skip" if chosen == "rollback" and has_teacher else chosen
