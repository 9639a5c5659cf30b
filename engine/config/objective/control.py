"""Controllable language modelling: the text follows a prompt with its genre, topic, keywords, sentiment and
length (ERNIE 3.0 Titan, 2112.12731, equation 2).
"""

from typing import ClassVar, Literal, get_args

from pydantic import Field, field_validator

from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import GENRES
from atelier.engine.config.own_rows import OwnRows
from atelier.engine.config.registry import ModelSpec

AttributeName = Literal["genre", "topic", "keywords", "sentiment", "length"]
ATTRIBUTE_NAMES: tuple[AttributeName, ...] = get_args(AttributeName)


class Control(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "control"
    extras: ClassVar[tuple[str, ...]] = ("prompts_BT",)
    source: ClassVar[str] = "attributes"

    kind: Literal["control"] = "control"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    asked: float = Field(default=0.5, ge=0, le=1, description="share of rows with such a prompt")
    dropped: float = Field(default=0.5, ge=0, lt=1, description="share of attributes left out of a prompt")
    cut: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of rows cut after a random token: only the prompt's length tells where",
    )
    prompt_length: int = Field(
        default=16, ge=1, description="soft prompts per genre; a row gets 0 to this number - 1"
    )

    genres: tuple[str, ...] = Field(
        default=GENRES, min_length=1, description="genres, each with its soft prompts; those of model.genres"
    )
    attributes: tuple[AttributeName, ...] = Field(
        default=ATTRIBUTE_NAMES, min_length=1, description="attributes that a prompt may have"
    )

    @field_validator("genres", "attributes")
    @classmethod
    def _once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names) or not all(names):
            raise ValueError(f"{list(names)} holds a name twice, or ''")
        return names

    @property
    def num_prompts(self) -> int:
        """Rows of the model's soft-prompt table."""
        return len(self.genres) * self.prompt_length

    def check_reader(self, place: str, model: ModelSpec) -> None:
        super().check_reader(place, model)
        if (known := getattr(model, "genres", self.genres)) != self.genres:
            raise ConfigError(
                f"{place}model.genres",
                f"are {', '.join(known)}, but objective control has {', '.join(self.genres)}",
                f"{place}model.genres=[{','.join(self.genres)}]",
            )
        has = getattr(model, "prompts", self.num_prompts)
        if has != self.num_prompts:
            raise ConfigError(
                f"{place}model.prompts",
                f"is {has or 'not there'}, but prompt_length={self.prompt_length} needs {self.num_prompts}",
                f"{place}model.prompts={self.num_prompts}",
            )
