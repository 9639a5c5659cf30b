"""Settings of the training in which a detector learns to find the tokens that a generator has replaced, while
the generator trains on. Torch-free.
"""

from pydantic import Field, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.registry import Model, Objective, Optim
from atelier.engine.config.sections import sections_of, with_sections

GENERATOR, DETECTOR = "generator", "detector"  # names of the roles


@with_sections("detect")
class Detect(Spec):
    detector: Model = Field(description="the detector, from random weights")
    objective: dict[str, Objective] = Field(description="objectives of the detector")
    optim: Optim = Field(description="optimiser of both models")
    steps: Count = Field(description="steps of both models, train.global_batch rows each")

    @model_validator(mode="after")
    def _fits(self) -> "Detect":
        for value in sections_of(self).values():
            value.check_section(self)
        if not any(type(spec).needs_teacher for spec in self.objective.values()):
            raise ValueError("objective: none learns from the generator; add one of kind replaced")
        if not any(type(spec).predicts for spec in self.objective.values()):
            raise ValueError("objective: none predicts tokens, as the next training does; add one of kind lm")
        return self
