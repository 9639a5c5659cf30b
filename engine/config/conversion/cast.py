"""The same weights as numbers of another type."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.registry import ModelSpec


class Cast(ConversionSpec):
    kind: Literal["cast"] = "cast"
    dtype: Literal["bfloat16", "float16", "float32"] = Field(default="bfloat16", description="of the weights")

    def converted(self, spec: ModelSpec) -> ModelSpec:
        return spec
