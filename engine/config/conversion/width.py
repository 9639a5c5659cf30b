"""Multiply the width by a whole number: hidden states become copies side by side, and every matrix
distributes its inputs over them. The model's function is unchanged (Net2Net, 1511.05641; bert2BERT,
2110.07143).
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import parse
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec


class Width(ConversionSpec):
    kind: Literal["width"] = "width"
    hidden: int = Field(
        default=0, ge=0, description="width of the new model, a multiple of the old; 0 = twice the old"
    )
    spread: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="how unequally outgoing weights are split over copies; at 0 copies stay equal",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the shares")

    def factor(self, spec: ModelSpec) -> int:
        """How many copies of the hidden width."""
        return (self.hidden or 2 * spec.hidden) // spec.hidden

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, GPT):
            problem = f"widens a model of kind gpt, not {spec.kind}"
            raise ConfigError("convert", problem, "give another model")
        hidden = self.hidden or 2 * spec.hidden
        if hidden % spec.hidden or hidden == spec.hidden:
            near = max(2, round(hidden / spec.hidden)) * spec.hidden
            raise ConfigError(
                "convert.hidden",
                f"{hidden} is not a multiple of the model's {spec.hidden}; only multiples are exact",
                f"hidden={near}",
            )
        if spec.num_experts:
            raise ConfigError(
                "convert.hidden",
                "cannot widen mixtures of experts",
                "widen the dense model first, then convert=upcycle",
            )
        if spec.memory.blocks:
            raise ConfigError(
                "convert.hidden",
                "cannot widen product-key memories",
                "widen the model first, then convert=product_keys",
            )
        factor = hidden // spec.hidden
        changed = {
            "hidden": hidden,
            "num_heads": spec.num_heads * factor,
            "num_kv_heads": spec.kv_heads * factor,
            "ffn": spec.inner * factor,
            "head_dim": spec.head_dim if spec.head_dim == "auto" else spec.head_width,
        }
        return parse(type(spec), {**spec.model_dump(mode="json"), **changed}, "convert")
