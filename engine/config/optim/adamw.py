"""AdamW (1711.05101) with decoupled weight decay on matrices only, and its learning-rate schedule."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.registry import OptimSpec
from atelier.engine.config.schedule import Schedule


class AdamW(OptimSpec):
    kind: Literal["adamw"] = "adamw"
    lr: float = Field(gt=0, le=1, description="peak learning rate; above 0")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(default=1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(default=0.1, ge=0, description="decay per step, times lr; matrices only")
    clip: float = Field(default=1.0, gt=0, description="gradients are scaled down to this global norm")
    schedule: Schedule = Field(default=Schedule(), description="schedule of the learning rate")
