"""A mixture of experts from a dense model: every expert begins as the block's MLP (sparse upcycling,
2212.05055).
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import parse
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import Experts, MixedBlocks
from atelier.engine.config.registry import ModelSpec


class CopyMLP(ConversionSpec):
    kind: Literal["copy_mlp"] = "copy_mlp"
    num_experts: int = Field(default=8, ge=2, description="experts of a block")
    experts_per_token: int = Field(default=2, ge=1, description="experts that compute each token")
    every: int = Field(default=1, ge=1, description="a mixture in every n-th block, the others stay dense")
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the routers' first values")

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, MixedBlocks):
            raise ConfigError("convert", f"copies the MLPs of blocks, and kind {spec.kind} has no mixtures")
        if spec.num_experts:
            raise ConfigError(
                "convert", f"makes experts of dense blocks, and the model has {spec.num_experts} already"
            )
        fields = {
            "num_experts": self.num_experts,
            "experts_per_token": self.experts_per_token,
            "experts": Experts(every=self.every).model_dump(mode="json"),
        }
        return parse(type(spec), spec.model_dump(mode="json") | fields, "convert")
