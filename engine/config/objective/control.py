"""Controllable language modelling: text after a control prompt with its genre, topic, keywords, sentiment and
length (ERNIE 3.0 Titan, 2112.12731, equation 2).
"""

from typing import ClassVar, Literal

from pydantic import Field

from atelier.engine.config.error import ConfigError
from atelier.engine.config.generation import GENRES
from atelier.engine.config.own_rows import OwnRows
from atelier.engine.config.registry import ModelSpec


class Control(OwnRows):
    needs_teacher: ClassVar[bool] = False
    term: ClassVar[str] = "lm"
    reads: ClassVar[str] = "control"
    extras: ClassVar[tuple[str, ...]] = ("prompts_BT",)
    source: ClassVar[str] = "attributes"

    kind: Literal["control"] = "control"
    weight: float = Field(default=1.0, gt=0, description="share among the role's active objectives; above 0")
    asked: float = Field(default=0.5, ge=0, le=1, description="share of the rows that say what is asked for")
    dropped: float = Field(
        default=0.5, ge=0, lt=1, description="share of the attributes that such a row leaves out"
    )
    cut: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the rows whose text ends after any of its tokens: only the length tells where",
    )
    prompt_length: int = Field(
        default=16, ge=1, description="soft prompts of a genre; a row has 0 to one less"
    )

    @property
    def num_prompts(self) -> int:
        """Rows of the model's table of soft prompts."""
        return len(GENRES) * self.prompt_length

    def check_reader(self, place: str, model: ModelSpec) -> None:
        super().check_reader(place, model)
        has = getattr(model, "prompts", self.num_prompts)
        if has != self.num_prompts:
            raise ConfigError(
                f"{place}model.prompts",
                f"{has or 'none'}, but genres of {self.prompt_length} need {self.num_prompts}",
                f"{place}model.prompts={self.num_prompts}",
            )
