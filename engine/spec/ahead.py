"""Who is trained alone before all train together, as Titan's assistant is (2112.12731, section 5)."""

from pydantic import Field, model_validator

from atelier.engine.spec.base import Spec


class Ahead(Spec):
    role: str = Field(
        default="", description="the role that is trained alone first and goes on from there; empty = none"
    )
    steps: int = Field(default=0, ge=0, description="steps that it is trained alone")

    @model_validator(mode="after")
    def _both(self) -> "Ahead":
        if self.role and not self.steps:
            raise ValueError(f"{self.role} is to be trained ahead for no step; give steps, or ahead=none")
        return self
