"""Upcycle a dense model to a mixture of experts: every expert starts as a copy of the block's MLP or of a
part of it (sparse upcycling, 2212.05055; finer experts and routers, 2410.07524, section 3.2; CPM-2's stage 3,
2106.10715).
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Json, parse
from atelier.engine.config.conversions import GrowingSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.experts import MixedBlocks
from atelier.engine.config.registry import ModelSpec


class Upcycle(GrowingSpec):
    kind: Literal["upcycle"] = "upcycle"
    num_experts: int = Field(default=8, ge=2, description="experts per block")
    experts_per_token: int = Field(default=2, ge=1, description="experts per token")
    every: int = Field(default=1, ge=1, description="a mixture in every n-th block; the others stay dense")
    finer: int = Field(default=1, ge=1, description="parts that an MLP is cut into; each expert is one part")
    router: Literal["learned", "orthogonal"] = Field(
        default="learned",
        description="learned; or orthogonal: fixed orthogonal rows, tokens assigned evenly (router base)"
        " as in CPM-2",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the routers' initial weights")

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, MixedBlocks):
            problem = f"copies MLPs to experts, but models of kind {spec.kind} have no experts"
            raise ConfigError("convert", problem, "give a model of kind gpt, encdec or ernie")
        if spec.num_experts:
            problem = f"needs a dense model, but this one has {spec.num_experts} experts"
            raise ConfigError("convert", problem, "give a dense model")
        self._check_parts(spec)
        experts: dict[str, Json] = {"every": self.every}
        if self.finer > 1:
            experts["ffn"] = spec.inner // self.finer
        if self.router == "orthogonal":
            experts |= {"combine": "sum", "router": {"kind": "base", "sees_future": True}}
        fields = {
            "num_experts": self.num_experts,
            "experts_per_token": self.experts_per_token,
            "experts": experts,
        }
        return parse(type(spec), spec.model_dump(mode="json") | fields, "convert")

    def _check_parts(self, spec: MixedBlocks) -> None:
        if self.finer > 1 and self.optimizer == "grown":
            raise ConfigError(
                "convert.optimizer",
                "grown needs finer=1: parts of an MLP are scaled, so its states do not fit",
                "optimizer=dropped, or finer=1",
            )
        if self.router == "orthogonal":
            if self.experts_per_token != 1 or self.finer > 1:
                raise ConfigError(
                    "convert.router",
                    f"orthogonal assigns one whole expert per token, not {self.experts_per_token}"
                    + (f" of {self.finer} parts" if self.finer > 1 else ""),
                    "experts_per_token=1 finer=1, or router=learned",
                )
            return
        if self.experts_per_token == self.finer:
            what = "one expert" if self.finer == 1 else "one group of parts"
            raise ConfigError(
                "convert.experts_per_token",
                f"{self.experts_per_token}: with {what} per token its weight is 1 and no router learns",
                f"experts_per_token={2 * self.finer}, or router=orthogonal",
            )
        for name, number in (
            ("num_experts", self.num_experts),
            ("experts_per_token", self.experts_per_token),
        ):
            if number % self.finer:
                raise ConfigError(
                    f"convert.{name}",
                    f"{number} is not a multiple of convert.finer={self.finer}",
                    f"{name}={-(-number // self.finer) * self.finer}",
                )
        if spec.inner % self.finer:
            raise ConfigError(
                "convert.finer",
                f"{self.finer} does not divide the MLP's width {spec.inner}",
                "give a divisor of the width",
            )
