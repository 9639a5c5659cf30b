"""Average several finished models of equal shape and tokenizer: seeds, or checkpoints of one run (model
soups, 2203.05482; stochastic weight averaging, 1803.05407).
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from atelier.engine.config.base import flatten
from atelier.engine.config.conversions import ConversionSpec, Other
from atelier.engine.config.error import ConfigError
from atelier.engine.config.registry import ModelSpec

FREE = ("dropout", "init_std")  # fields that a finished model does not use


class AverageModels(ConversionSpec):
    kind: Literal["average"] = "average"
    models: tuple[str, ...] = Field(
        default=(),
        description="finished models to average with the first",
        json_schema_extra={"layout": True},  # they are parents
    )
    weights: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(), description="weights of the first model and of `models`; empty = equal"
    )

    @model_validator(mode="after")
    def _are_as_many(self) -> Self:
        if self.weights and len(self.weights) != 1 + len(self.models):
            raise ValueError(f"weights has {len(self.weights)} numbers for {1 + len(self.models)} models")
        return self

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each model, the first included; they sum to 1."""
        weights = self.weights or (1.0,) * (1 + len(self.models))
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def others(self) -> Mapping[str, Other]:
        return {
            f"model.{number}": Other("model", name, "convert.models")
            for number, name in enumerate(self.models, start=1)
        }

    def check_other(self, spec: ModelSpec, other: ModelSpec, which: Other) -> None:
        mine, theirs = (flatten(each.model_dump(mode="json", exclude=set(FREE))) for each in (spec, other))
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                raise ConfigError(
                    which.place,
                    f"{which.name} has {name} {theirs.get(name)}, the first model {mine.get(name)}",
                    "only models of equal shape can be averaged",
                )

    def converted(self, spec: ModelSpec) -> ModelSpec:
        if not self.models:
            raise ConfigError("convert.models", "is empty", "add models: convert.models=[<model>,...]")
        return spec
