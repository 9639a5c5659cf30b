"""Fields of mixtures of experts, which replace the MLPs of blocks. Torch-free.

X num_experts, K experts_per_token, F inner width of an expert
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import Count, Spec
from atelier.engine.config.blocks import MLPS, Auto, Blocks, MLPKind
from atelier.engine.config.registry import Limit
from atelier.engine.config.routing import Router, usual_router

Combine = Literal["softmax_chosen", "softmax_all", "sum"]


class Experts(Spec):
    """The experts of a mixture, and the routing of tokens."""

    ffn: Count | Auto = Field(default="auto", description="inner width of an expert; auto = the MLP's")
    activation: MLPKind | Auto = Field(default="auto", description="a kind as in mlp; auto = the MLP's")
    shared: int = Field(default=0, ge=0, description="shared experts, which every token passes")
    every: int = Field(default=1, ge=1, description="a mixture in blocks n, 2n, 3n ...; the others are dense")
    combine: Combine = Field(
        default="softmax_chosen",
        description="weight of each chosen expert: softmax over the chosen scores, over all scores, or 1",
    )
    router: Router = Field(default_factory=usual_router, description="how tokens are assigned to experts")
    group: int = Field(
        default=1, ge=1, description="rows whose tokens compete for experts, if the router lets them compete"
    )


class MixedBlocks(Blocks):
    """Blocks of which some have a mixture of experts."""

    num_experts: int = Field(default=0, ge=0, description="experts per block, each an MLP; 0 = one dense MLP")
    experts_per_token: int = Field(default=2, ge=1, description="experts per token (unused without experts)")
    experts: Experts = Field(default=Experts(), description="size, routing and more (unused without experts)")

    @model_validator(mode="after")
    def _mixes(self) -> Self:
        if not self.num_experts:
            return self
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token {self.experts_per_token} is more than num_experts {self.num_experts}"
            )
        if self.experts.every > self.num_layers:
            raise ValueError(
                f"experts.every {self.experts.every} is more than num_layers {self.num_layers}: "
                "no block would have experts"
            )
        self.experts.router.check_experts(self.num_experts, self.experts_per_token)
        if "mlp" in self.biased:
            raise ValueError("experts have no bias: leave mlp out of bias")
        return self

    @property
    def version(self) -> int:
        """2 with experts: Muon orthogonalises each expert's matrices; in version 1, AdamW updated them."""
        return 2 if self.num_experts else super().version

    def has_experts(self, number: int) -> bool:
        """Whether block `number` has a mixture."""
        return bool(self.num_experts) and (number + 1) % self.experts.every == 0

    @property
    def mixtures(self) -> list[int]:
        """The numbers of the blocks that have a mixture."""
        return [number for number in range(self.num_layers) if self.has_experts(number)]

    @property
    def expert_inner(self) -> int:
        """Inner width F of an expert."""
        return self.inner if self.experts.ffn == "auto" else self.experts.ffn

    @property
    def expert_mlp(self) -> MLPKind:
        """The kind of MLP of an expert."""
        return self.mlp if self.experts.activation == "auto" else self.experts.activation

    @property
    def is_gated(self) -> bool:
        """Whether an expert is gated."""
        return MLPS[self.expert_mlp][1]

    def mlp_shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """The weights of block `number`'s MLP or mixture."""
        D, F, X = self.hidden, self.inner, self.num_experts
        found: dict[str, tuple[int, ...]]
        if not self.has_experts(number):
            found = {f"{name}.weight": (F, D) for name in (("gate", "up") if self.has_gate else ("up",))}
            found["down.weight"] = (D, F)
            return found | {
                name.replace("weight", "bias"): shape[:1]
                for name, shape in found.items()
                if "mlp" in self.biased
            }
        F, router = self.expert_inner, self.experts.router
        found = {"router.weight": (X, D)} if router.learns else {}
        found |= {f"router.{name}": (X,) for name in router.buffers}
        inside = ("gate", "up") if self.is_gated else ("up",)
        found |= {f"experts.{name}": (X, F, D) for name in inside} | {"experts.down": (X, D, F)}
        if self.experts.shared:
            wide = self.experts.shared * F
            found |= {f"shared.{name}": (wide, D) for name in inside} | {"shared.down": (D, wide)}
        return found

    def mlp_products(self, number: int) -> int:
        """Multiply-adds of one token in block `number`'s MLP or mixture."""
        D = self.hidden
        if not self.has_experts(number):
            return (3 if self.has_gate else 2) * D * self.inner
        met = self.experts_per_token + self.experts.shared
        each = (3 if self.is_gated else 2) * D * self.expert_inner
        return met * each + (self.num_experts * D if self.experts.router.learns else 0)

    def expert_limits(self) -> list[Limit]:
        """The numbers of experts and widths that mesh axes must divide."""
        if not self.num_experts:
            return []
        return [
            Limit("expert", "num_experts", self.num_experts),
            Limit("tensor", "experts.ffn", self.expert_inner),
        ]
