"""Split a dense model's MLPs into a mixture of experts (MoEfication, 2110.01786). Neurons that are active
together form an expert; a router is trained on activations to choose the experts of each token.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Json, parse
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.divisors import divisors
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.registry import ModelSpec


class Moefy(ConversionSpec):
    kind: Literal["moefy"] = "moefy"
    num_experts: int = Field(
        default=32, ge=2, description="experts per block: equal parts of its MLP's neurons"
    )
    experts_per_token: int = Field(
        default=8, ge=1, description="experts per token; with all of them it equals the dense model"
    )
    by: Literal["weights", "coactivation", "random"] = Field(
        default="coactivation",
        description="neurons of one expert: coactivation = active on the same tokens; weights = similar"
        " input weights; random = any",
    )
    tokens: int = Field(
        default=32768, ge=256, description="training tokens for measuring activations and training routers"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the clusters' first neurons")

    @property
    def num_tokens(self) -> int:
        return self.tokens

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, MixedBlocks):
            problem = f"splits MLPs into experts, but models of kind {spec.kind} have no experts"
            raise ConfigError("convert", problem, "give a model of kind gpt, encdec or ernie")
        if spec.num_experts:
            raise ConfigError(
                "convert",
                f"splits dense MLPs, but the model has {spec.num_experts} experts already",
                "use a dense model",
            )
        if "mlp" in spec.biased:
            raise ConfigError(
                "convert",
                "splits MLPs without biases, but the model's have some",
                "use a model without mlp in bias",
            )
        if self.experts_per_token > self.num_experts:
            raise ConfigError(
                "convert.experts_per_token",
                f"{self.experts_per_token} of {self.num_experts} experts",
                f"{self.num_experts} or less",
            )
        if spec.inner % self.num_experts:
            near = min(
                divisors(spec.inner, spec.inner)[1:] or [1], key=lambda each: abs(each - self.num_experts)
            )
            raise ConfigError(
                "convert.num_experts",
                f"{self.num_experts} does not divide the MLP's width {spec.inner}",
                f"num_experts={near}",
            )
        experts: dict[str, Json] = {"ffn": spec.inner // self.num_experts, "combine": "sum"}
        fields = {
            "num_experts": self.num_experts,
            "experts_per_token": self.experts_per_token,
            "experts": experts,
        }
        return parse(type(spec), spec.model_dump(mode="json") | fields, "convert")
