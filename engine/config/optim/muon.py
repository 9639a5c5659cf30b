"""Muon (K. Jordan et al. 2024, 2502.16982) for matrices inside blocks and around task nets; AdamW for
embeddings, heads and vectors.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.registry import OptimSpec
from atelier.engine.config.schedule import Schedule


class Muon(OptimSpec):
    kind: Literal["muon"] = "muon"
    lr: float = Field(gt=0, le=1, description="peak learning rate of AdamW; above 0")
    matrix_lr: float = Field(
        default=0.02, gt=0, le=1, description="peak learning rate of the matrices inside blocks; above 0"
    )
    momentum: float = Field(default=0.95, ge=0, lt=1, description="decay of the matrices' momentum")
    iterations: int = Field(
        default=5, ge=1, le=20, description="Newton-Schulz steps of the orthogonalisation"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="AdamW: decay of the first moment")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="AdamW: decay of the second moment")
    eps: float = Field(default=1e-8, gt=0, description="AdamW: added to the root of the second moment")
    weight_decay: float = Field(default=0.1, ge=0, description="decay per step, times lr; matrices only")
    clip: float = Field(default=1.0, gt=0, description="gradients are scaled down to this global norm")
    schedule: Schedule = Field(default=Schedule(), description="schedule of both learning rates")
