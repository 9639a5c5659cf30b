"""Add product-key memories beside the MLPs of a finished model (residual memories: Kim et al., 2010.03881).
Value rows start at zero, so the model's function is unchanged at first.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import parse
from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.memory import MemorySizes
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec


class AddProductKeys(ConversionSpec, MemorySizes):
    kind: Literal["product_keys"] = "product_keys"
    blocks: tuple[int, ...] = Field(
        default=(), description="numbers of the blocks that get a memory; empty = the middle block"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of queries and keys")

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, GPT):
            problem = f"adds memories to a model of kind gpt, not {spec.kind}"
            raise ConfigError("convert", problem, "give another model")
        if spec.memory.blocks:
            raise ConfigError(
                "convert",
                f"adds memories, but blocks {list(spec.memory.blocks)} of the model have some already",
                "use a model without memories",
            )
        blocks = self.blocks or (spec.num_layers // 2,)
        for number in blocks:
            if not 0 <= number < spec.num_layers:
                raise ConfigError(
                    "convert.blocks",
                    f"has {number}, but the model has blocks 0 to {spec.num_layers - 1}",
                    "give numbers in this range",
                )
        sizes = {name: getattr(self, name) for name in MemorySizes.model_fields}
        changed = {"memory": {"blocks": blocks, **sizes}}
        return parse(type(spec), spec.model_dump(mode="json") | changed, "convert")
