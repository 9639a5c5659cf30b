"""Merge a LoRA adapter into its model's matrices: W + alpha / rank B A (LoRA, 2106.09685). The result is a
plain model.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from atelier.engine.config.conversions import ConversionSpec, Other
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec


class MergeAdapter(ConversionSpec):
    kind: Literal["merge_adapter"] = "merge_adapter"
    adapter: str = Field(
        default="",
        description="adapter of the model: its name or first digits of its fingerprint",
        json_schema_extra={"layout": True},  # it is a parent
    )

    @property
    def others(self) -> Mapping[str, Other]:
        return {"adapter": Other("adapter", self.adapter, "convert.adapter")}

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not self.adapter:
            raise ConfigError("convert.adapter", "is empty", "`atelier lineage <model>` lists its adapters")
        return spec
