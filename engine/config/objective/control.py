"""Controllable language modelling: the text follows a prompt with its genre, topic, keywords, sentiment and
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

    @property
    def num_prompts(self) -> int:
        """Rows of the model's soft-prompt table."""
        return len(GENRES) * self.prompt_length

    def check_reader(self, place: str, model: ModelSpec) -> None:
        super().check_reader(place, model)
        has = getattr(model, "prompts", self.num_prompts)
        if has != self.num_prompts:
            raise ConfigError(
                f"{place}model.prompts",
                f"is {has or 'not there'}, but prompt_length={self.prompt_length} needs {self.num_prompts}",
                f"{place}model.prompts={self.num_prompts}",
            )
