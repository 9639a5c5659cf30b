"""Merge similar experts into fewer, or into one dense MLP (2310.01334, 2410.08589)."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import parse
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.registry import ModelSpec


class MergeExperts(ConversionSpec):
    kind: Literal["merge_experts"] = "merge_experts"
    num_experts: int = Field(default=4, ge=0, description="experts of a block; 0 = one dense MLP")
    by: Literal["clusters", "load", "random"] = Field(
        default="clusters",
        description="clusters: merge experts with similar router logits, weighted by load; load: keep the"
        " most used experts; random: keep random ones",
    )
    tokens: int = Field(default=16384, ge=256, description="training tokens for load and similarity")
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of by=random")

    @property
    def num_tokens(self) -> int:
        return 0 if self.by == "random" else self.tokens

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, MixedBlocks) or not spec.num_experts:
            problem = f"merges experts, but the model (kind {spec.kind}) has none"
            raise ConfigError("convert", problem, "give a mixture of experts")
        if self.num_experts >= spec.num_experts:
            raise ConfigError(
                "convert.num_experts",
                f"{self.num_experts} of the model's {spec.num_experts}: nothing to merge",
                f"give fewer than {spec.num_experts}",
            )
        if self.by == "clusters" and not spec.experts.router.learns:
            raise ConfigError(
                "convert.by",
                f"clusters need router logits, but router {spec.experts.router.kind} has none",
                "by=load",
            )
        changed = self._dense(spec) if not self.num_experts else self._fewer(spec)
        return parse(type(spec), spec.model_dump(mode="json") | changed, "convert")

    def _fewer(self, spec: MixedBlocks) -> dict[str, int]:
        groups = getattr(spec.experts.router, "groups", 1)
        if groups > 1:
            raise ConfigError(
                "convert.num_experts",
                f"{self.num_experts}: the router has {groups} groups of experts, and merging would mix them",
                "num_experts=0 merges all into one dense MLP",
            )
        return {
            "num_experts": self.num_experts,
            "experts_per_token": min(spec.experts_per_token, self.num_experts),
        }

    def _dense(self, spec: MixedBlocks) -> dict[str, int | str]:
        router = spec.experts.router
        if self.by == "random" and (router.has_own_shares or spec.experts.combine != "softmax_chosen"):
            how = f"router {router.kind}" if router.has_own_shares else f"combine={spec.experts.combine}"
            raise ConfigError(
                "convert.by",
                f"by=random reads no text, but the experts' common weight ({how}) must be measured on text",
                "by=load",
            )
        if spec.experts.every > 1 and spec.mlp != spec.expert_mlp:
            raise ConfigError(
                "convert.num_experts",
                f"0, but experts use {spec.experts.activation} and dense blocks {spec.mlp}",
                "num_experts=1",
            )
        if spec.experts.shared:
            raise ConfigError(
                "convert.num_experts", "0, but the model's shared experts would be left over", "num_experts=1"
            )
        if spec.experts.every > 1 and spec.expert_inner != spec.inner:
            raise ConfigError(
                "convert.num_experts",
                f"0, but experts are {spec.expert_inner} wide and the dense blocks {spec.inner}",
                "num_experts=1",
            )
        return {
            "num_experts": 0,
            "experts_per_token": 2,
            "ffn": spec.expert_inner,
            "mlp": spec.expert_mlp,
        }
