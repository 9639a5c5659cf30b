"""Add blocks. With how=zero the new blocks' outputs are zero, so the model's function is unchanged at first
(Net2Net's identity layers, 1511.05641; LLaMA Pro, 2401.02415). Stacked (Gong et al., ICML 2019) and
interleaved copies change it.
"""

from typing import Literal

from pydantic import Field

from atelier.engine.config.base import Json, parse
from atelier.engine.config.conversions import GrowingSpec
from atelier.engine.config.error import ConfigError
from atelier.engine.config.model.gpt import GPT
from atelier.engine.config.registry import ModelSpec


class Depth(GrowingSpec):
    kind: Literal["depth"] = "depth"
    num_layers: int = Field(default=0, ge=0, description="blocks of the new model; 0 = twice as many")
    how: Literal["zero", "stacked", "interleaved"] = Field(
        default="zero",
        description="zero: each copy follows its original and adds nothing at first; interleaved: each"
        " copy follows its original unchanged; stacked: all blocks are repeated in order",
    )

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not isinstance(spec, GPT):
            problem = f"adds blocks to a model of kind gpt, not {spec.kind}"
            raise ConfigError("convert", problem, "give another model")
        number = self.num_layers or 2 * spec.num_layers
        if number <= spec.num_layers:
            raise ConfigError(
                "convert.num_layers", f"{number}, but the model has {spec.num_layers} already", "give more"
            )
        if spec.mixtures and spec.experts.every > 1:
            raise ConfigError(
                "convert.num_layers",
                f"the model has a mixture in every {spec.experts.every}th block; new blocks would move them",
                "use a model with experts.every=1",
            )
        if spec.num_experts and spec.experts.router.kind == "hash":
            raise ConfigError(
                "convert.num_layers",
                "router hash differs from block to block: copied blocks would route tokens to other experts",
                "add blocks first, then convert=upcycle",
            )
        changed: dict[str, Json] = {"num_layers": number}
        sources = self.sources(spec.num_layers)
        if spec.memory.blocks:
            blocks = [n for n, s in enumerate(sources) if s in spec.memory.blocks]
            changed["memory"] = {**spec.memory.model_dump(mode="json"), "blocks": blocks}
        if spec.window_blocks != "all":
            changed["window_blocks"] = [n for n, s in enumerate(sources) if s in spec.window_blocks]
        return parse(type(spec), {**spec.model_dump(mode="json"), **changed}, "convert")

    def sources(self, num_layers: int) -> list[int]:
        """The parent's block that each new block is a copy of."""
        number = self.num_layers or 2 * num_layers
        if self.how == "stacked":
            return [n % num_layers for n in range(number)]
        return [n * num_layers // number for n in range(number)]
