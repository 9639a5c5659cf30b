"""Convert weights to another number type."""

from typing import Literal

from pydantic import Field

from atelier.engine.config.conversions import ConversionSpec
from atelier.engine.config.registry import ModelSpec


class Cast(ConversionSpec):
    kind: Literal["cast"] = "cast"
    dtype: Literal["bfloat16", "float16", "float32"] = Field(default="bfloat16", description="number type")

    def converted(self, spec: ModelSpec) -> ModelSpec:
        return spec
